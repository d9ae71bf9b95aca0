"""Where py-spy may not look, workers of rltrain say where their threads are; a loop that polls is seen to wait."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlcheck.measure.hang import jobs, look
from rlcheck.measure.hang.reads import Table

WORKER = """
import faulthandler, signal, sys, threading
faulthandler.register(signal.SIGUSR2, open(sys.argv[1], "a"), all_threads=True)
def helps():
    threading.Event().wait()
threading.Thread(target=helps, daemon=True).start()
def works():
    print("ready", flush=True)
    threading.Event().wait()
works()
"""
POLLS = """
import os, selectors, socket
ours, theirs = socket.socketpair()
child = os.fork()
if child == 0:
    ours.close()
    theirs.recv(1)
theirs.close()
print(child, flush=True)
with selectors.DefaultSelector() as selector:
    selector.register(ours, selectors.EVENT_READ)
    while True:
        selector.select(0.5)
"""

DRIVER = """
import ctypes, os, subprocess, sys, threading
log = open(sys.argv[1], "w")
def core():
    ctypes.CDLL(None).prctl(15, b"worker.io", 0, 0, 0)
    threading.Event().wait()
threading.Thread(target=core, daemon=True).start()
rank = "import time; time.sleep(600)"
ranks = "import os, subprocess, sys; " + (
    "of = lambda rank: subprocess.Popen([sys.executable, '-c', sys.argv[1]], env={**os.environ, 'RANK': rank}); "
    "two = [of('0'), of('1')]; print(os.getpid(), *[one.pid for one in two], flush=True); two[0].wait()")
environ = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
subprocess.run([sys.executable, "-c", ranks, rank], env=environ)
"""
"""What looks like a driver of Ray: its thread and its log; it starts a launcher of two ranks beside Ray."""


def _job_of(pid: int) -> dict[int, int | None]:
    """The processes and ranks that are found, by one which is above none of them."""
    code = f"from rlcheck.measure.hang.jobs import find; print({{p.pid: p.rank for p in find({pid}, '').processes}})"
    return ast.literal_eval(subprocess.check_output([sys.executable, "-c", code], text=True))


def test_ranks_that_a_driver_of_ray_starts_are_a_job_of_their_own(tmp_path: Path) -> None:
    log = tmp_path / "session_1" / "driver.log"
    log.parent.mkdir()
    words = [sys.executable, "-c", DRIVER, str(log)]
    driver = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert driver.stdout is not None
        launcher, *ranks = map(int, driver.stdout.readline().split())
        assert jobs._session(driver.pid) == "/session_1"
        assert _job_of(launcher) == {launcher: None, ranks[0]: 0, ranks[1]: 1}
        assert _job_of(driver.pid).keys() > {driver.pid, *ranks}
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()


def test_a_worker_writes_its_own_stacks(tmp_path: Path) -> None:
    file = tmp_path / "train-0.stacks"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(file)], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        worker.stdout.readline()
        main, other = look._by_itself(worker.pid, file)
        assert main.tid == worker.pid
        assert [frame.partition(" in ")[2] for frame in main.frames][-2:] == ["works", "<module>"]
        assert any("helps" in frame for frame in other.frames)
    finally:
        worker.kill()
        worker.communicate()


def test_who_polls_waits_for_the_other_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", POLLS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        found = look._peers(Table([process.pid, child]), process.pid)
        assert [(peer.pid, peer.how) for peer in found] == [(child, "polled")]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("/opt/venv/bin/python3 -m torch.distributed.run --standalone train.py", "launcher"),
        ("/opt/venv/bin/python3 /opt/venv/bin/torchrun --nproc-per-node 2 train.py", "launcher"),
        ("python3 /lib/torch/distributed/run.py train.py", "launcher"),
        ("accelerate launch train.py", "launcher"),
        ("[pytest-xdist running] tests/test_torchrun_ends.py::test_under_torchrun_it_ends", "[pytest-xdist"),
        ("bash start_torchrun.sh", "bash"),
        ("python /srv/reward-models/engineer/train.py --judge none", "train.py"),
        ("python -m vllm.entrypoints.openai.api_server --model m", "engine"),
        ("VLLM::EngineCore", "engine"),
        ("python /srv/run/reward_server.py", "reward"),
        ("ray::RewardWorker.score", "RewardWorker"),
    ],
)
def test_a_role_is_what_runs_not_what_is_named_beside_it(title: str, role: str) -> None:
    """A process above the ranks whose title only speaks of a launcher once was one, and then a culprit."""
    assert jobs._role(title, None) == role
