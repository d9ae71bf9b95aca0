"""Where py-spy may not look, workers of rltrain say where their threads are; a loop that polls is seen to wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rlcheck.measure.hang import look
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
