"""Which of Ray's own processes a local cluster starts: those that a run uses. Ray has no public switches for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rltrain.cluster import absent_agent, fork_client
from rltrain.cluster.ray_api import ray

_AGENTS = {
    "--dashboard_agent_command=": ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"),
    "--runtime_env_agent_command=": ("runtime_env_agent_port",),
}
"""Options of Ray's node (2.60) that start agents, and the services whose ports it waits for."""
_WORKERS = "--python_worker_command="
TRIED = ("2.60.",)
"""Releases of Ray that were seen to run so; another starts its agents, and each worker imports for itself."""


def is_tried() -> bool:
    """Whether the Ray that is here is of a release in TRIED."""
    return ray.__version__.startswith(TRIED)


@contextmanager
def only_what_runs_need(arguments: dict[str, Any], fork_address: Path | None) -> Generator[None]:
    """Start a local Ray without what ARGUMENTS, of `ray.init`, do not ask for; with workers from FORK_ADDRESS, if any.

    Left out are the dashboard's server, autoscaler, log monitor, and the agents of dashboard and runtime environments.
    No run uses them, each is an interpreter with imports of its own (the agents: four CPU seconds), and `ray.init`
    waits for them. `include_dashboard=False` starts the server with fewer modules (seen in 2.60).
    """
    kept = {"start_api_server": "include_dashboard", "start_log_monitor": "log_to_driver", "start_monitor": ""}
    node, services = ray._private.node.Node, ray._private.services
    changes = [(node, name, _start_nothing) for name, asked in kept.items() if not arguments.get(asked)]
    lean = not arguments.get("runtime_env") and not arguments.get("include_dashboard")
    if lean and is_tried():
        changes.append((services, "start_ray_process", _lean(services.start_ray_process, fork_address)))
    here = [(where, name, change) for where, name, change in changes if getattr(where, name, None) is not None]
    before = [(where, name, getattr(where, name)) for where, name, _ in here]
    for where, name, change in here:
        setattr(where, name, change)
    try:
        yield
    finally:
        for where, name, method in before:
            setattr(where, name, method)


def _start_nothing(*_args: Any, **_kwargs: Any) -> None:
    """In place of a method of Ray's that starts a process."""


def _lean(start: Any, fork_address: Path | None) -> Any:
    """START, of Ray's processes, which starts Ray's node without agents, and with workers that are forked."""

    def started(command: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        return start(lean_command(command, fork_address), *args, **kwargs)

    return started


def lean_command(command: Sequence[str], fork_address: Path | None) -> list[str]:
    """COMMAND with other agents and other workers, if it starts Ray's node; else as it is."""
    said = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
    session, node = said.get("--session_dir"), said.get("--node_id")
    if session is None or node is None:
        return list(command)
    return [_lean_word(word, Path(session), node, fork_address) for word in command]


def _lean_word(word: str, session: Path, node: str, fork_address: Path | None) -> str:
    for option, services in _AGENTS.items():
        if word.startswith(option):
            files = [str(session / ray._private.node.get_port_filename(node, name)) for name in services]
            return option + _python(absent_agent.__file__, *files)
    # A worker without a runtime environment: Ray takes its setup script out of the command, as long as it is that.
    setup = Path(ray.__file__).parent / "_private" / "workers" / "setup_worker.py"
    plain = _WORKERS + subprocess.list2cmdline([sys.executable, str(setup)])
    if fork_address is not None and word.startswith(f"{plain} "):
        return _WORKERS + _python(fork_client.__file__, str(fork_address)) + word.removeprefix(plain)
    return word


def _python(*words: str) -> str:
    """A command line of an interpreter with nothing but the standard library."""
    return subprocess.list2cmdline([sys.executable, "-I", "-S", *words])
