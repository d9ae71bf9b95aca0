"""The flight recorder of a training rank, asked by the doctor while the rank hangs."""

from __future__ import annotations

import subprocess
import sys

from rlcheck.facts.hang import Process
from rlcheck.measure.hang.recorders import ask
from tests.conftest import base_environ

RANK = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from rltrain.workers.fsdp import recorder
recorder.turn_on("cpu")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(4, 2))
print(os.environ["TORCH_FR_BUFFER_SIZE"], os.environ["TORCH_FR_DUMP_TEMP_FILE"], flush=True)
time.sleep(1000)
"""


def test_a_rank_that_hangs_gives_its_record() -> None:
    environ = base_environ({"RLTRAIN_WORK_FILE": "/run/logs/train-0.work"})
    rank = subprocess.Popen([sys.executable, "-c", RANK], stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline().split() == ["2000", "/run/logs/flight_"]
        (dump,), notes = ask([Process(pid=rank.pid, role="", rank=0)], {}, 10.0)
        assert notes == []
        assert [(call.name, call.sizes, call.dtypes) for call in dump.calls] == [("all_reduce", ((4, 2),), ("Float",))]
    finally:
        rank.kill()
        rank.communicate()
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with other:
        assert ask([Process(pid=other.pid, role="", rank=0)], {}, 1.0)[0] == ()
        other.communicate()
