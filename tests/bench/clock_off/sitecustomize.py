"""Takes rltrain's clock out of the processes of a run: of all calls and rounds (CLOCK_OFF=all), or of every other one.

For every other one (CLOCK_OFF=DIR) the seconds of each call and round are written to DIR, a line each: what, with the
clock or without, seconds, seconds of a processor, and how many collectives were in it.
"""

import contextlib
import importlib.abc
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

HOW = os.environ.get("CLOCK_OFF", "")
STATE = {"on": HOW != "all", "round": False, "round_s": 0.0, "round_cpu_s": 0.0, "together": 0}
COUNTS = Counter()


def note(what, on, seconds, cpu_s):
    with (Path(HOW) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps([what, on, seconds, cpu_s, STATE["together"]]) + "\n")
    STATE["together"] = 0


def in_spent(module):
    timed = module.Spent.together

    def together(self):
        STATE["together"] += 1
        return timed(self) if STATE["on"] else contextlib.nullcontext()

    module.Spent.together = together


def in_host(module):
    with_clock = module.Host._timed

    def timed(self, method, args):
        COUNTS[method] += 1
        STATE["on"] = HOW != "all" and COUNTS[method] % 2 == 0
        begun, cpu = time.perf_counter(), time.thread_time()
        if STATE["on"]:
            value = with_clock(self, method, args)
        else:
            value = module.Answered(getattr(self._worker, method)(*args), module.SPENT.timed(lambda: None)[1])
        if HOW != "all":
            note(method, STATE["on"], time.perf_counter() - begun, time.thread_time() - cpu)
        return value

    module.Host._timed = timed


def in_stream(module):
    true, collect, flow = module.Stream, module.Stream.collect, module.Flow

    def made():
        COUNTS["round"] += 1
        STATE["round"] = HOW != "all" and COUNTS["round"] % 2 == 0
        STATE["round_s"] = STATE["round_cpu_s"] = 0.0
        return flow() if STATE["round"] else None

    def timed(self, wait_s):
        begun, cpu, busy = time.perf_counter(), time.thread_time(), self.under_way
        try:
            return collect(self, wait_s)
        finally:
            STATE["round_s"] += time.perf_counter() - begun
            STATE["round_cpu_s"] += time.thread_time() - cpu
            if busy and not self.under_way and HOW != "all":
                note("round", STATE["round"], STATE["round_s"], STATE["round_cpu_s"])

    module.Flow, true.collect = made, timed


def in_build(module):
    if HOW == "all":
        module.time_weights = lambda model: None


def in_file(module):
    written = module.ClockFile.on_step_end

    def timed(self, record):
        begun, cpu = time.perf_counter(), time.thread_time()
        written(self, record)
        note("file", True, time.perf_counter() - begun, time.thread_time() - cpu)

    if HOW != "all":
        module.ClockFile.on_step_end = timed


PATCHES = {
    "rltrain.controller.callbacks.clock_file": in_file,
    "rltrain.core.spent": in_spent,
    "rltrain.cluster.host": in_host,
    "rltrain.workers.rollout.stream": in_stream,
    "rltrain.workers.fsdp.build": in_build,
}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in PATCHES:
            return None
        patch = PATCHES.pop(name)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


if HOW:
    sys.meta_path.insert(0, Finder())
