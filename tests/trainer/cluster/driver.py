"""A controller in a process of its own: `python -m tests.trainer.cluster.driver MODE LOGS`. Prints facts as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil

from rltrain.cluster import ray_start
from rltrain.cluster.calls import gather
from rltrain.cluster.placement import plan
from rltrain.cluster.runtime import Runtime, connect
from rltrain.cluster.teardown import EXIT_CODE, Interrupted, StopSignals
from rltrain.core.errors import RunFailure, UserError
from tests.trainer.cluster.workers import Adder, config, first, spawn


def main(mode: str, logs: Path) -> int:
    ray_init = {"address": os.environ["RAY_ADDRESS"], "num_cpus": None} if mode == "join" else {}
    if mode == "late":
        ray_start.START_DEADLINE_S = 0.5
    try:
        with (
            connect(config(ray_init), logs, _say) as runtime,
            StopSignals(runtime.waits, runtime.end_now, _say) as stop,
        ):
            return _run(mode, runtime, stop)
    except Interrupted as error:
        _say(str(error))
        return EXIT_CODE
    except (RunFailure, UserError) as error:
        _say(f"{type(error).__name__}: {error}")
        return 1


def _run(mode: str, runtime: Runtime, stop: StopSignals) -> int:
    group = spawn(runtime, Adder, plan(config(), runtime.nodes).train, [(1,), (2,)], deadline_s=100)
    facts = {
        "workers": group.pids,
        "children": group.all("spawn_child", deadline_s=60),
        "shm": first(group, "make_shared_memory", deadline_s=60),
        "library_shm": first(group, "make_library_shared_memory", deadline_s=60),
        "ray": [process.pid for process in runtime.started],
        "ports": _ports([process.pid for process in runtime.started]),
        "id": runtime.id,
    }
    print(json.dumps(facts), flush=True)
    if mode == "fail":
        raise RunFailure("the loss is not a number")
    if mode == "stubborn":
        while not stop.requested:
            time.sleep(0.1)
        _say("goes on")
        time.sleep(300)
    if mode == "wait":
        gather(runtime, [group.begin("hang_in_this_function", [(300.0,), (300.0,)])], 300, "generating")
    return 0


def _ports(pids: list[int]) -> list[int]:
    found = (connection for pid in pids for connection in psutil.Process(pid).net_connections("tcp"))
    return sorted({connection.laddr.port for connection in found if connection.status == psutil.CONN_LISTEN})


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
