"""`rlcheck mcp`, driven by the SDK's own client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from rlcheck.cli.mcp import TOOLS
from tests.conftest import ROOT, base_environ, rlcheck
from tests.measure.resume import made
from tests.report.test_schemas import validator

if TYPE_CHECKING:  # importing the SDK takes two CPU seconds
    from mcp import Client


def asked(ask: Callable[[Client], Awaitable[Any]]) -> Any:
    """What ASK gets from a server of its own."""
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(command=sys.executable, args=["-m", "rlcheck", "mcp"], env=base_environ(), cwd=ROOT)

    async def talk() -> Any:
        async with Client(server) as client:
            return await ask(client)

    return asyncio.run(asyncio.wait_for(talk(), 100))


def called(tool: str, **arguments: Any) -> Any:
    """What a tool answers: its structured content."""

    async def ask(client: Client) -> Any:
        return await client.call_tool(tool, arguments)

    done = asked(ask)
    assert not done.is_error, done.content
    return done.structured_content


def refused(tool: str, **arguments: Any) -> str:
    """What a tool says that refuses."""

    async def ask(client: Client) -> Any:
        return await client.call_tool(tool, arguments)

    done = asked(ask)
    assert done.is_error
    return done.content[0].text


def test_each_tool_is_documented_and_read_only() -> None:
    async def ask(client: Client) -> Any:
        return await client.list_tools()

    tools = {tool.name: tool for tool in asked(ask).tools}
    assert set(tools) == {tool.__name__ for tool in TOOLS}
    for name, tool in tools.items():
        assert len(tool.description) > 60, name
        assert tool.annotations.read_only_hint is True, name
        assert tool.annotations.destructive_hint is False, name
        for argument in tool.input_schema.get("properties", {}):
            assert f"{argument}:" in tool.description or len(tool.input_schema["properties"]) == 1, (name, argument)


def test_it_is_the_same_json(tmp_path: Path) -> None:
    config = str(ROOT / "docs/examples/grpo-7b.sh")
    report = called("config", config=config, everything=True)
    validator("report.schema.json").validate(report)
    direct = json.loads(rlcheck("config", config, "--format", "json").out)
    assert {one["id"]: one["status"] for one in report["checks"]} == {
        one["id"]: one["status"] for one in direct["checks"]
    }
    broken = called("config", config=config, overrides=["trainer.sede=1"])
    assert broken["exit_code"] == 1
    assert broken["next"]["action"] == "fix"
    assert "pass" not in {one["status"] for one in broken["checks"]}
    log = called("diagnose", logs=[str(ROOT / "docs/examples/oom.log")])
    validator("diagnosis.schema.json").validate(log)
    assert log["diagnoses"][0]["id"] == "activations-out-of-memory"
    hang = called("diagnose", logs=[str(ROOT / "docs/examples/hang")])
    assert hang["hang"]["culprits"][0]["rank"] == 2
    place = made.verl(tmp_path / "v", 10, 20)
    assert called("resume", directory=str(place), ranks=2)["data"]["resume"]["step"] == 20
    health = called("run_health", run=str(ROOT / "docs/examples/old-weights.jsonl"))
    assert health["checks"][0]["id"] == "DRF001"
    memory = called("memory_profile", config=config, gpu="H100-80GB")
    assert memory["data"]["memory"]


def test_the_machine_and_what_is_known() -> None:
    machine = called("env", everything=True)
    assert machine["command"] == "env"
    assert len(machine["checks"]) > 100
    assert "SYS001" in called("explain", name="SYS001")["result"]
    checks = called("list_checks", family="RES")["result"]
    assert {one["id"][:3] for one in checks} == {"RES"}


def test_errors_are_a_line_for_the_assistant() -> None:
    assert "no such file" in refused("diagnose", logs=["/nowhere.log"])
    assert "give a path or a name" in refused("config", config="--output=/tmp/x")
    assert "give a path or a name" in refused("diagnose", logs=["-"])
    assert "give a path or a name" in refused("config", config="train.sh", overrides=["-o", "x"])
    assert "no checkpoints" in refused("resume", directory="/proc/self")


def test_nothing_is_written(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(ROOT / "docs/examples/old-weights.jsonl", run / "metrics.jsonl")
    before = {path: path.stat().st_mtime_ns for path in (run, *run.rglob("*"))}
    for name, arguments in (("run_health", {"run": str(run)}), ("slow", {"targets": [str(run)]})):

        async def ask(client: Client, name: str = name, arguments: dict[str, Any] = arguments) -> Any:
            return await client.call_tool(name, arguments)

        asked(ask)
    assert {path: path.stat().st_mtime_ns for path in (run, *run.rglob("*"))} == before


def test_without_the_sdk_it_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError('no module named mcp')\n")
    paths = os.pathsep.join((str(tmp_path), base_environ()["PYTHONPATH"]))
    done = rlcheck("mcp", env={"PYTHONPATH": paths})
    assert done.code == 2
    assert "pip install 'rlcheck[mcp]'" in done.error_line


def test_the_schema_of_each_argument_can_say_no() -> None:
    async def ask(client: Client) -> Any:
        return await client.list_tools()

    schemas = {tool.name: tool.input_schema for tool in asked(ask).tools}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"directory": 3}, schemas["resume"])
