"""Which processes are alive, asked of /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path


def below(pid: int) -> set[int]:
    """All descendants of a process."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found, queue = set[int](), {pid}
    while queue:
        queue = {child for child, parent in parents.items() if parent in queue}
        found |= queue
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def survivors(pids: set[int], within_s: float = 20.0) -> set[int]:
    """Those that are still alive when they had so long to end."""
    deadline = time.monotonic() + within_s
    while (left := {pid for pid in pids if is_alive(pid)}) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def kill(pids: set[int]) -> None:
    """So that a test that fails leaves nothing."""
    for pid in pids:
        if is_alive(pid):
            os.kill(pid, 9)
