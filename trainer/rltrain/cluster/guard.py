"""A small process that outlives its ward and cleans up after it, however the ward ended (even by SIGKILL).

Run as a file, with nothing but the standard library: `python -S -E guard.py WARD GROUP PREFIX SESSION [PID:BIRTH …]`.
It waits until the process WARD is gone, ends what is left of the process group GROUP (0: none) and the processes PID,
and removes the files of shared memory that begin with PREFIX (empty: none) and the directory SESSION (empty: none).
A worker's guard ends the processes that an engine has started. The controller's guard ends the two agents of a local
Ray, which would look for Ray for a minute (the rest of it dies with the controller; seen in 2.60), and removes shared
memory and Ray's session directory, as nobody else is left to do it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import select
import shutil
import signal
import sys
import time

GRACE_S = 2.0


def main(ward: int, group: int, prefix: str, session: str, others: list[str]) -> None:
    """Wait for the end of WARD, then clean up."""
    _wait_for_end(ward)
    if group:
        # Python's resource tracker last: it ends by itself, when it has unlinked what the others leave.
        for pid in _members(group):
            if b"resource_tracker" not in _command(pid):
                _kill(pid)
        deadline = time.monotonic() + GRACE_S
        while _members(group) and time.monotonic() < deadline:
            time.sleep(0.05)
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for pid, _, birth in (other.partition(":") for other in others):
        if birth and birth_of(int(pid)) == birth:
            _kill(int(pid))
    if prefix:
        time.sleep(GRACE_S)  # the workers' own guards end the last users of it first
        for path in glob.glob(f"/dev/shm/{glob.escape(prefix)}*"):
            os.unlink(path)
    if session:
        shutil.rmtree(session, ignore_errors=True)


def birth_of(pid: int) -> str:
    """When a process started, in the kernel's ticks; with its number it names one process. Empty when it is gone."""
    stat = _stat(pid)
    return stat[19] if stat else ""


def _wait_for_end(ward: int) -> None:
    try:
        select.select([os.pidfd_open(ward)], [], [])
    except OSError:  # no such process any more, or a kernel before 5.3
        while os.path.exists(f"/proc/{ward}"):
            time.sleep(0.5)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; none when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _members(group: int) -> list[int]:
    """Processes of GROUP that live."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if (stat := _stat(pid)) and stat[2] == str(group) and stat[0] != "Z"]


def _command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
