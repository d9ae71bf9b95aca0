"""Asks the flight recorders of running ranks for what they hold: a byte into the pipe that torch, or rltrain, reads."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from rlcheck.diagnose.hang.dumps import NoDump, read
from rlcheck.diagnose.hang.seen import collective, goes_on, holds_lock
from rlcheck.facts.flight import Call, Dump
from rlcheck.facts.hang import Process

Pipes = Mapping[int, tuple[str, str]]
"""By process: the pipe to ask with, and the file that is written then."""
_MOST_CALLS = 64
"""Of one group, the last ones: what is open, and what others may have called differently."""


def pipe_of(own: Mapping[str, str]) -> tuple[str, str] | None:
    """Pipe and file of a rank with such variables; None where it is not told to listen."""
    rank, pipe = own.get("RANK", ""), own.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
    file = own.get("TORCH_FR_DUMP_TEMP_FILE") or own.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE") or ""
    return (f"{pipe}{rank}.pipe", f"{file}{rank}") if rank and pipe and file else None


def worth_asking(processes: Sequence[Process]) -> bool:
    """Whether stacks do not tell the ranks apart: all wait in calls, or, for their GPUs, at lines of their own."""
    ranks = [one for one in processes if one.rank is not None]
    if not ranks or any(one.hindrance or holds_lock(one) or not one.looks or goes_on(one) for one in ranks):
        return False
    within = [one for one in ranks if one.looks[-1] and collective(one.looks[-1][0])]
    return len(within) in (0, len(ranks))


def ask(processes: Sequence[Process], pipes: Pipes, within_s: float) -> tuple[tuple[Dump, ...], list[str]]:
    """What the recorders of PROCESSES hold that answer WITHIN_S seconds, and what is to be said of the others."""
    asked: dict[str, tuple[float, int]] = {}
    for one in processes:
        if one.rank is not None and one.pid in pipes:
            pipe, file = pipes[one.pid]
            before = _written(file)
            if _tell(pipe):
                asked[file] = before, one.rank
    if not asked:
        return (), ["no rank listens for requests for flight-recorder dumps (docs/diagnose.md says how to have them)"]
    deadline = time.monotonic() + within_s
    waited = dict(asked)
    found: list[Dump] = []
    while waited and time.monotonic() < deadline:
        time.sleep(0.1)
        for file, (before, rank) in list(waited.items()):
            if _written(file) > before and (dump := _whole(file, rank)) is not None:
                found.append(trimmed(dump))
                del waited[file]
    late = [str(rank) for _, rank in waited.values()]
    notes = [f"flight-recorder dumps of ranks {', '.join(late[:16])} did not come within {within_s:.0f} s"]
    return tuple(found), notes if late else []


def trimmed(dump: Dump) -> Dump:
    """DUMP, with the last calls of each group alone."""
    groups: dict[str, list[Call]] = defaultdict(list)
    for call in dump.calls:
        groups[call.group].append(call)
    kept = {call.order for calls in groups.values() for call in calls[-_MOST_CALLS:]}
    return replace(dump, calls=tuple(replace(c, frames=c.frames[:4]) for c in dump.calls if c.order in kept))


def _whole(file: str, rank: int) -> Dump | None:
    """The dump in FILE; None while it is being written."""
    try:
        return read(file, rank)
    except NoDump:
        return None


def _tell(pipe: str) -> bool:
    try:
        if not Path(pipe).is_fifo():
            return False
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # fails where no process reads it
    except OSError:
        return False
    try:
        return os.write(descriptor, b"1\n") > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
