"""A small process that outlives its ward and cleans up after it, however the ward ended (even by SIGKILL).

Run as a file, with nothing but the standard library: `python -S -E guard.py WARD GROUP PREFIX SESSION [PID:BIRTH …]`.
It waits until the process WARD is gone, ends what is left of the process group GROUP (0: none) and the processes PID,
and removes the files of shared memory that begin with PREFIX (empty: none) and the directory SESSION (empty: none).
A worker's guard ends the processes that an engine has started. The controller's guard ends the two agents of a local
Ray, which would look for Ray for a minute (the rest of it dies with the controller; seen in 2.60), and removes shared
memory and Ray's session directory, as nobody else is left to do it.
"""

from __future__ import annotations

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
        # SIGTERM first: Python's resource tracker ignores it, and unlinks what the others leave.
        _signal(group, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while _signal(group, 0) and time.monotonic() < deadline:
            time.sleep(0.05)
        _signal(group, signal.SIGKILL)
    for pid, _, birth in (other.partition(":") for other in others):
        if birth and birth_of(int(pid)) == birth:
            os.kill(int(pid), signal.SIGKILL)
    if prefix:
        time.sleep(GRACE_S)  # the workers' own guards end the last users of it first
        for path in glob.glob(f"/dev/shm/{glob.escape(prefix)}*"):
            os.unlink(path)
    if session:
        shutil.rmtree(session, ignore_errors=True)


def birth_of(pid: int) -> str:
    """When a process started, in the kernel's ticks; with its number it names one process. Empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _wait_for_end(ward: int) -> None:
    try:
        select.select([os.pidfd_open(ward)], [], [])
    except OSError:  # no such process any more, or a kernel before 5.3
        while os.path.exists(f"/proc/{ward}"):
            time.sleep(0.5)


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
