"""Asks the flight recorders of running ranks for what they hold: at rltrain's socket, or by the pipe of torch."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from rlcheck.diagnose.hang.dumps import MOST_BYTES, NoDump, parse, read
from rlcheck.diagnose.hang.seen import collective, goes_on, holds_lock
from rlcheck.facts.flight import Call, Dump
from rlcheck.facts.hang import Process

Pipes = Mapping[int, tuple[str, str]]
"""By process: the pipe to ask with, and the file that is written then."""
ADDRESS = "\0torch-flight-recorder-{pid}"
"""In Linux's abstract namespace: where a rank of rltrain answers with its records, each after its length, 8 bytes."""
_LENGTH = struct.Struct("<Q")
_AT_ONCE = 16
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
    ranks = {one.pid: one.rank for one in processes if one.rank is not None}
    deadline = time.monotonic() + within_s

    def asked(pid: int) -> Dump | None:
        return _asked(pid, ranks[pid], pipes.get(pid), deadline)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(asked, ranks))
    late = [str(rank) for rank, dump in zip(ranks.values(), found, strict=True) if dump is None]
    if len(late) == len(ranks):
        return (), ["no rank gave its flight record (docs/diagnose.md says how ranks can be asked)"]
    notes = [f"no flight record of ranks {', '.join(late[:16])}"] if late else []
    return tuple(trimmed(dump) for dump in found if dump is not None), notes


def _asked(pid: int, rank: int, pipe: tuple[str, str] | None, deadline: float) -> Dump | None:
    """The record of one rank: of a socket, as rltrain has, or by the pipe to which torch listens."""
    dump = _of_socket(pid, rank, deadline)
    if dump is not None or pipe is None:
        return dump
    before, told = _written(pipe[1]), False
    while Path(pipe[0]).is_fifo() and time.monotonic() < deadline:
        told = told or _tell(pipe[0])  # while it writes a record it reads no pipe
        time.sleep(0.1)
        with suppress(NoDump):  # it is being written
            if _written(pipe[1]) > before:
                return read(pipe[1], rank)
    return None


def _of_socket(pid: int, rank: int, deadline: float) -> Dump | None:
    data = b""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(max(0.1, deadline - time.monotonic()))
            link.connect(ADDRESS.format(pid=pid))
            while (part := link.recv(1 << 16)) and len(data) < MOST_BYTES and time.monotonic() < deadline:
                data += part
    except OSError:
        return None
    found: list[Dump] = []
    while len(data) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data)
        with suppress(NoDump):
            found.append(parse(data[_LENGTH.size : _LENGTH.size + length], "", rank))
        data = data[_LENGTH.size + length :]
    return merged(found)


def merged(dumps: Sequence[Dump]) -> Dump | None:
    """DUMPS of the recorders of one rank as one: each numbers the calls of a group for itself."""
    if len(dumps) < 2:
        return dumps[0] if dumps else None
    whole = [
        _keyed(dump, str(number), sum(len(one.calls) for one in dumps[:number])) for number, dump in enumerate(dumps)
    ]
    return replace(
        dumps[0],
        groups={key: ranks for dump in whole for key, ranks in dump.groups.items()},
        names={key: name for dump in whole for key, name in dump.names.items()},
        calls=tuple(call for dump in whole for call in dump.calls),
        enqueued={key: number for dump in whole for key, number in dump.enqueued.items()},
    )


def _keyed(dump: Dump, mark: str, orders: int) -> Dump:
    return replace(
        dump,
        groups={f"{key}/{mark}": ranks for key, ranks in dump.groups.items()},
        names={f"{key}/{mark}": name for key, name in dump.names.items()},
        calls=tuple(replace(one, group=f"{one.group}/{mark}", order=one.order + orders) for one in dump.calls),
        enqueued={f"{key}/{mark}": number for key, number in dump.enqueued.items()},
    )


def reached(dumps: Sequence[Dump]) -> dict[int, tuple[int, int]]:
    """By rank: when its last call was queued, and how many are open."""
    return {
        dump.rank: (max((one.created_ns for one in dump.calls), default=0), sum(one.open for one in dump.calls))
        for dump in dumps
    }


def trimmed(dump: Dump) -> Dump:
    """DUMP, with the last calls of each group alone."""
    groups: dict[str, list[Call]] = defaultdict(list)
    for call in dump.calls:
        groups[call.group].append(call)
    kept = {call.order for calls in groups.values() for call in calls[-_MOST_CALLS:]}
    return replace(dump, calls=tuple(replace(c, frames=c.frames[:4]) for c in dump.calls if c.order in kept))


def _tell(pipe: str) -> bool:
    try:
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
