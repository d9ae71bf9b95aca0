"""`run.json`: what ran, with which versions, where, and what was waived."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rltrain.config.engines import ENGINES
from rltrain.config.schema import RunConfig
from rltrain.config.schema.sft import SftConfig
from rltrain.records.redaction import redacted, redacted_command
from rltrain.records.run_dir import RunDir

_ENGINES = [package for engine in ENGINES.values() for package in engine.packages]
PACKAGES = tuple(
    dict.fromkeys(("rlcheck", "torch", "ray", *_ENGINES, "transformers", "tensordict", "datasets", "numpy"))
)


def write_record(directory: RunDir, record: dict[str, Any]) -> None:
    """Write RECORD as `run.json`, whole or not at all."""
    fresh = directory.record.with_suffix(".new")
    try:
        fresh.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
        fresh.replace(directory.record)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def describe(
    config: RunConfig | SftConfig, *, command: Sequence[str], chosen: Sequence[str], preflight: dict[str, Any]
) -> dict[str, Any]:
    """The record of a run that begins now, without its secrets.

    Args:
        config: resolved.
        command: as it was typed.
        chosen: what the config had left open, one `KEY = VALUE` each.
        preflight: of `Preflight.record`.
    """
    record = {
        "schema_version": 1,
        "kind": "sft" if isinstance(config, SftConfig) else "run",
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": redacted_command(command),
        "config": config.model_dump(mode="json"),
        "chosen": list(chosen),
        "versions": {"python": platform.python_version()} | versions(),
        "git": _git(Path.cwd()),
        "host": _host(),
        "preflight": preflight,
    }
    return redacted(record)


def finish(directory: RunDir, outcome: str, **facts: Any) -> None:
    """Add how the run ended."""
    add(directory, outcome=outcome, ended=datetime.now(timezone.utc).isoformat(timespec="seconds"), **facts)


def add(directory: RunDir, **facts: Any) -> None:
    """Add FACTS, without secrets, to the record, if there is one."""
    if directory.record.exists():
        write_record(directory, json.loads(directory.record.read_text(encoding="utf-8")) | redacted(facts))


def versions() -> dict[str, str]:
    """Of the packages that a run works with."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _host() -> dict[str, Any]:
    return {
        "name": socket.gethostname(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": sys.executable,
    }


def _git(directory: Path) -> dict[str, Any] | None:
    def ask(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=5, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(ask("status", "--porcelain"))}
