"""Ending processes with everything that they started."""

import contextlib
import os
import signal
import time
from typing import Dict, List

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that `end_all` finds them (Linux)."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    except (ImportError, OSError, AttributeError):
        return


def descendants(pid: int) -> List[int]:
    """All processes below `pid`, from /proc; an empty list where there is none."""
    children: Dict[int, List[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open("/proc/%s/stat" % name, "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(name))
    found: List[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def kill_tree(pid: int) -> None:
    """Kill the process group that `pid` leads and all of its descendants, those with groups of their own too."""
    below = descendants(pid)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    for other in below:
        with contextlib.suppress(OSError):
            os.kill(other, signal.SIGKILL)


def end_all() -> None:
    """Kill every descendant of this process. Waits at most a second: one stuck in the kernel cannot die yet."""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        below = descendants(os.getpid())
        for pid in below:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not below:
            return
        time.sleep(0.01)
