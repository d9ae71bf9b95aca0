"""A local Ray whose workers are forked, and which has none of Ray's agents."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rltrain.cluster.fork_server import Imports
from rltrain.cluster.placement import plan
from rltrain.cluster.processes import descendants
from rltrain.cluster.runtime import connect
from rltrain.core.errors import RunFailure
from tests.trainer.cluster.workers import Adder, config, spawn

IMPORTED = "sqlite3"
"""Nothing imports it by itself."""


class Looking(Adder):
    """Says what kind of process it is in."""

    def looks(self) -> dict[str, Any]:
        return {
            "parent": os.getppid(),
            "imported": IMPORTED in sys.modules,
            "threads": os.environ["OMP_NUM_THREADS"],
            "group": os.getpgrp() == os.getpid(),
            "title": " ".join(psutil.Process().cmdline()),
        }


def test_workers_are_forked_and_how_one_ends_is_known(tmp_path: Path) -> None:
    said: list[str] = []
    with connect(config(), tmp_path, said.append, imports=Imports((IMPORTED,), 2)) as runtime:
        slots = plan(config(), runtime.nodes).train
        group = spawn(runtime, Looking, slots, [(1,), (2,)], deadline_s=90)
        [server] = [process for process in runtime.started if "fork_server" in process.command]
        for found in group.all("looks", deadline_s=30):
            assert (found["parent"], found["imported"], found["group"]) == (server.pid, True, True)
            assert found["threads"] == str(slots[0].num_threads)
            assert found["title"].startswith("ray::")
        commands = [process.command for process in descendants(os.getpid())]
        assert not [command for command in commands if "Agent" in command]
        # Beside the node itself, which was told to start them.
        agents = [command for command in commands if "absent_agent.py" in command and "--node_id" not in command]
        assert len(agents) == 2
        os.kill(group.pids[1], signal.SIGKILL)
        with pytest.raises(RunFailure, match="was killed by SIGKILL"):
            group.all("add", 3, deadline_s=30)
        group.restart(1, deadline_s=60)
        assert group.all("looks", deadline_s=30)[1]["parent"] == server.pid
        started = [*runtime.started, *descendants(server.pid)]
    assert [process for process in started if process.is_alive()] == []
    assert [line for line in said if "had to kill" in line] == []
