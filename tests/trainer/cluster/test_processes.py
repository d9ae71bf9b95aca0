"""How a process ended, in words; the watchdog and the signals where no worker is involved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rltrain.cluster import processes
from rltrain.cluster.node import NodeEyes
from rltrain.cluster.processes import cause_of_death, open_pidfd, remove_shared_memory, wait_status
from tests.conftest import base_environ

EOF = "Worker unexpectedly exits with a connection error code 2. End of file. (1) the process was killed by the OOM …"


@pytest.mark.parametrize(
    ("said", "status", "ooms", "words"),
    [
        (EOF, 9, 0, "was killed by SIGKILL"),
        (EOF, 9, 1, "was killed by SIGKILL by the kernel, as memory ran out"),
        (EOF, 11, 1, "was killed by SIGSEGV"),
        (EOF, 3 << 8, 0, "exited with code 3"),
        ("Worker exits with an exit code 1. The process receives a SIGTERM.", 0, 0, "was ended by SIGTERM"),
        ("The process receives a SIGTERM.", 15, 0, "was ended by SIGTERM"),
        ("The process receives a SIGTERM.", 11, 0, "was killed by SIGSEGV"),
        ("Worker exits with an exit code 4.", None, 0, "exited with code 4"),
        ("ray.exceptions.OutOfMemoryError: …", 9, 0, "was ended by Ray, as its node ran low on memory"),
        (EOF, None, 1, "ended without a word, and the kernel has killed a process as memory ran out"),
        (EOF, None, 0, "ended without a word, as after SIGKILL"),
    ],
)
def test_cause_of_death(said: str, status: int | None, ooms: int, words: str) -> None:
    assert cause_of_death(said, status, ooms) == words


def test_the_end_of_a_process_that_its_parent_has_not_collected() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    pidfd = open_pidfd(child.pid)
    child.kill()
    status = wait_status(child.pid, pidfd, timeout_s=5)
    child.wait()
    assert status is not None
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_the_end_of_a_process_that_is_gone_is_unknown_without_a_handle() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert wait_status(child.pid, None, timeout_s=0.05) is None


def test_only_our_shared_memory_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "SHARED_MEMORY", tmp_path)
    for name in ("rltrain-1-a", "rltrain-1-b", "rltrain-2-a", "psm_x"):
        (tmp_path / name).write_bytes(b"")
    assert remove_shared_memory("rltrain-1-") == ["rltrain-1-a", "rltrain-1-b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["psm_x", "rltrain-2-a"]


HANGING_CONTROLLER = """
import sys, threading, time
from pathlib import Path
from rltrain.cluster import watchdog
from rltrain.cluster.runtime import Runtime
watchdog.GRACE_S = 0.5

def hang_in_the_controller():
    threading.Event().wait(60)

runtime = Runtime(Path(sys.argv[1]), lambda line: print(line, flush=True), 5.0)
with watchdog.StallWatchdog(runtime, 0.5) as watching:
    watching.beat("step 7")
    hang_in_the_controller()
"""


def test_a_controller_that_hangs_itself_is_ended(tmp_path: Path) -> None:
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANGING_CONTROLLER, str(tmp_path)],
        env=base_environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert time.monotonic() - begin < 40
    assert done.stdout.startswith("no progress for ")
    assert (
        "since step 7; the controller waits for no worker, and hangs itself; the stacks of all ranks: " in done.stdout
    )
    assert "in hang_in_the_controller" in (tmp_path / "stall.txt").read_text()


SLOW_DUMP = """
import signal, subprocess, sys, time
from pathlib import Path
file = Path(sys.argv[1]).open("a")
def dump(*_):
    frames = ('  File "host.py", line 1 in call\\n', '  File "main.py", line 1 in <module>\\n')
    for part in ("Thread 0x1 (most recent call first):\\n", *frames):
        file.write(part)
        file.flush()
        time.sleep(0.5)
signal.signal(signal.SIGUSR2, dump)
guard = subprocess.Popen([sys.executable, "-S", "-E", sys.argv[2]])
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


def test_stacks_are_whole_on_a_busy_machine_and_leave_out_the_guard(tmp_path: Path) -> None:
    """A dump that pauses between its lines, as where processes wait for their turn; a guard in a deep directory."""
    guard = tmp_path / ("a-deep-directory/" * 8) / "guard.py"
    guard.parent.mkdir(parents=True)
    guard.write_text("import time\ntime.sleep(60)\n")
    log = tmp_path / "train-0.log"
    command = [sys.executable, "-c", SLOW_DUMP, str(log.with_suffix(".stacks")), str(guard)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        said = NodeEyes().stacks(child.pid, log)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert said.splitlines()[1:] == ['  File "host.py", line 1 in call', '  File "main.py", line 1 in <module>']
