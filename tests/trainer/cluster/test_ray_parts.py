"""The command that starts Ray's node, as Ray itself makes it, and what is left of it."""

from __future__ import annotations

import inspect
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from rltrain.cluster.ray_api import ray
from rltrain.cluster.ray_parts import only_what_runs_need

PLAIN = {"is_head_node": True, "webui": "", "session_name": "session_x", "max_bytes": 0, "backup_count": 0}


def command_of_node(arguments: dict[str, Any], address: Path | None, tmp_path: Path) -> dict[str, list[str]]:
    """The options of the node that hold commands, split into words; nothing is started."""
    services, seen = ray._private.services, list[list[str]]()
    start = services.start_ray_process
    resources = ray._private.resource_and_label_spec.ResourceAndLabelSpec(2, 0, 1 << 28, 1 << 28, {}).resolve(True)
    given = PLAIN | {"resource_and_label_spec": resources, "node_id": "ab12", "session_dir": str(tmp_path)}
    needed = [
        name
        for name, one in inspect.signature(services.start_raylet).parameters.items()
        if one.default is inspect.Parameter.empty and name not in given
    ]
    # Ports and places, which only go into the command.
    given |= {name: str(tmp_path) if "dir" in name else 1234 for name in needed}
    worker = Path(ray.__file__).parent / "_private" / "workers"
    given |= {"worker_path": str(worker / "default_worker.py"), "setup_worker_path": str(worker / "setup_worker.py")}
    given |= {"object_store_memory": 1 << 28, "plasma_directory": "/dev/shm", "fallback_directory": str(tmp_path)}
    given |= {"resource_isolation_config": ray._private.resource_isolation_config.ResourceIsolationConfig(False)}

    def keep(command: list[str], *_args: Any, **_kwargs: Any) -> None:
        seen.append(command)

    services.start_ray_process = keep
    try:
        with only_what_runs_need(arguments, address):
            services.start_raylet(**given)
    finally:
        services.start_ray_process = start
    options = (word.partition("=") for word in seen[0])
    return {name: shlex.split(value) for name, _, value in options if name.endswith("_command")}


def test_agents_say_that_they_are_absent_and_workers_are_forked(tmp_path: Path) -> None:
    commands = command_of_node({}, tmp_path / "socket", tmp_path)
    workers, dashboard, environments = (
        commands[f"--{name}_command"] for name in ("python_worker", "dashboard_agent", "runtime_env_agent")
    )
    for words in (workers, dashboard, environments):
        assert words[:3] == [sys.executable, "-I", "-S"]
    assert Path(workers[3]).name == "fork_client.py"
    assert workers[4] == str(tmp_path / "socket")
    assert Path(workers[5]).name == "default_worker.py"
    assert workers[-1] == "RAY_WORKER_DYNAMIC_OPTION_PLACEHOLDER"
    assert Path(dashboard[3]).name == Path(environments[3]).name == "absent_agent.py"
    services = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    for file, service in zip((*dashboard[4:], *environments[4:]), services, strict=True):
        assert Path(file) == tmp_path / ray._private.node.get_port_filename("ab12", service)


def test_without_a_server_workers_are_started_as_ray_does(tmp_path: Path) -> None:
    words = command_of_node({}, None, tmp_path)["--python_worker_command"]
    assert [Path(word).name for word in words[1:3]] == ["setup_worker.py", "default_worker.py"]


@pytest.mark.parametrize("asked", [{"runtime_env": {"env_vars": {"A": "1"}}}, {"include_dashboard": True}])
def test_who_asks_for_what_agents_do_gets_them(asked: dict[str, Any], tmp_path: Path) -> None:
    commands = command_of_node(asked, None, tmp_path)
    assert "agent.py" in {Path(word).name for word in commands["--dashboard_agent_command"]}
    assert "main.py" in {Path(word).name for word in commands["--runtime_env_agent_command"]}


def test_a_release_that_was_not_tried_starts_all_as_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "3.1.0")
    commands = command_of_node({}, tmp_path / "socket", tmp_path)
    assert Path(commands["--python_worker_command"][1]).name == "setup_worker.py"
    assert "agent.py" in {Path(word).name for word in commands["--dashboard_agent_command"]}
