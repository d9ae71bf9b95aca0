"""Traces of torch's profiler (Kineto: JSON, also gzipped): what a rank's GPU or threads did, and waited for."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import msgspec

from rlcheck.facts.slow import TraceUse
from rlcheck.measure.config.trees import as_tree

_MOST_BYTES = 2 << 30
_CHUNK = 1 << 22
_TOP = 5
_LONGEST_NAME = 160
_MOST_RANKS = 1_000_000
_US = 1e-6
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_COLLECTIVE = re.compile(r"(?:nccl(?:Dev)?Kernel|gloo:|nccl:|rccl|c10d::)(?!.*barrier_complete)", re.IGNORECASE)
_DATA = "enumerate(DataLoader)"
_STEP = re.compile(r"ProfilerStep#\d+")
_RANK = re.compile(r"rank[_-]?(\d{1,6})")
_LIKE_A_TRACE = re.compile(rb'"(?:traceEvents|distributedInfo|schemaVersion|deviceProperties)"\s*:')

Span = tuple[float, float]


class Event(msgspec.Struct, gc=False):
    """Of a trace's event what is looked at. Microseconds."""

    ph: str = ""
    cat: str | None = ""
    name: str | int | None = ""
    ts: float | str = 0.0
    dur: float | str = 0.0
    tid: int | str | None = 0
    pid: int | str | None = 0


class Trace(msgspec.Struct, gc=False):
    """A trace. Whatever else is in it is passed over."""

    events: list[Event] = msgspec.field(name="traceEvents", default_factory=list[Event])
    distributed: object = msgspec.field(name="distributedInfo", default=None)
    devices: object = msgspec.field(name="deviceProperties", default=None)


def is_trace(head: bytes) -> bool:
    """Whether HEAD, the beginning of a file (unpacked), is of a trace."""
    return head.lstrip()[:1] in (b"{", b"[") and (_LIKE_A_TRACE.search(head) is not None)


def read_trace(path: Path) -> tuple[TraceUse, str]:
    """What the trace at PATH says, and what is wrong with it in words, "" where nothing is.

    Raises:
        ValueError: it is too large, or holds no event.
        OSError: it cannot be read.
    """
    data, cut = _unpacked(path)
    trace = _decoded(data)
    if trace is None:
        trace, cut = _salvaged(data), True
    del data
    if trace is None or not trace.events:
        raise ValueError("no event of torch's profiler can be read in it")
    used = _use(path.name, trace)
    if used.span_s <= 0:
        raise ValueError("its events take no time")
    return used, "is cut; what is before the cut was read" if cut else ""


def _unpacked(path: Path) -> tuple[bytes, bool]:
    """The text of PATH, and whether it ends too early."""
    if path.suffix != ".gz":
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(_too_large())
        return path.read_bytes(), False
    parts: list[bytes] = []
    size = 0
    try:
        with gzip.open(path, "rb") as file:
            while part := file.read(_CHUNK):
                parts.append(part)
                if (size := size + len(part)) > _MOST_BYTES:
                    raise ValueError(_too_large())
    except (EOFError, zlib.error):
        return b"".join(parts), True
    return b"".join(parts), False


def _too_large() -> str:
    return f"it is over {_MOST_BYTES >> 30} GiB unpacked; record fewer steps: schedule(active=2), with_stack=False"


def _decoded(data: bytes) -> Trace | None:
    try:
        text = data.lstrip()
        if text[:1] == b"[":
            return Trace(events=msgspec.json.decode(text, type=list[Event]))
        return msgspec.json.decode(text, type=Trace)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _salvaged(data: bytes) -> Trace | None:
    """The whole events of a trace that was cut: up to the last that another follows."""
    end = len(data)
    for _ in range(16):
        end = max(data.rfind(b"},", 0, end), data.rfind(b"}\n", 0, end))
        if end < 0:
            return None
        for closing in (b"}]}", b"}]"):
            if (trace := _decoded(data[:end] + closing)) is not None:
                return trace
    return None


def _use(source: str, trace: Trace) -> TraceUse:
    events = [one for one in trace.events if one.ph == "X" and _duration(one) > 0 and isinstance(one.name, str)]
    on_gpu = [one for one in events if one.cat in _ON_GPU]
    steps = [_span(one) for one in events if _STEP.fullmatch(str(one.name)) and one.cat == "user_annotation"]
    begin, end = _bounds(steps or [_span(one) for one in events])
    # Of a GPU all that ran; of CPUs the outermost operations of each thread.
    work = on_gpu or [
        one for one in events if one.cat in ("cpu_op", "user_annotation") and not _STEP.fullmatch(str(one.name))
    ]
    together = [one for one in work if _COLLECTIVE.match(str(one.name))]
    chosen = {id(one) for one in together}
    other = [one for one in work if id(one) not in chosen and not str(one.name).startswith(_DATA)]
    if not on_gpu:
        other = [one for one in other if one.cat == "cpu_op"]
    together_spans, other_spans = _union(map(_span, together)), _union(map(_span, other))
    data = _union(_span(one) for one in events if str(one.name).startswith(_DATA))
    busy = _length(_union([*together_spans, *other_spans]), begin, end)
    rank, world = _place(source, trace)
    return TraceUse(
        source=source,
        rank=rank,
        world=world,
        device=_device(trace),
        on_gpu=bool(on_gpu),
        span_s=(end - begin) * _US,
        busy_s=busy * _US,
        together_s=_length(together_spans, begin, end) * _US,
        exposed_s=(busy - _length(other_spans, begin, end)) * _US,
        copy_s=_length(_union(_span(one) for one in on_gpu if one.cat == "gpu_memcpy"), begin, end) * _US,
        # What the loader does beside a GPU that works costs nothing.
        data_s=_alone(data, other_spans if on_gpu else [], begin, end) * _US,
        steps=len(steps),
        top=_top(on_gpu or other),
    )


def _alone(spans: Sequence[Span], others: Sequence[Span], begin: float, end: float) -> float:
    """Time of SPANS in which none of OTHERS is."""
    both = _union([*spans, *others])
    return _length(both, begin, end) - _length(others, begin, end)


def _number(value: float | str) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return 0.0
    return float(value) if abs(value) < 1e18 else 0.0


def _duration(event: Event) -> float:
    return _number(event.dur)


def _span(event: Event) -> Span:
    begin = _number(event.ts)
    return begin, begin + _duration(event)


def _bounds(spans: Sequence[Span]) -> Span:
    return (min(one[0] for one in spans), max(one[1] for one in spans)) if spans else (0.0, 0.0)


def _union(spans: Iterable[Span]) -> list[Span]:
    """SPANS without their overlaps, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found


def _length(spans: Iterable[Span], begin: float, end: float) -> float:
    return sum(max(0.0, min(high, end) - max(low, begin)) for low, high in spans)


def _top(events: Iterable[Event]) -> tuple[tuple[str, float], ...]:
    """Names that took longest; of nested operations both count."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for one in events:
        seconds[str(one.name)[:_LONGEST_NAME]] += _duration(one) * _US
    most = sorted(seconds.items(), key=lambda item: -item[1])[:_TOP]
    return tuple((name, round(value, 6)) for name, value in most)


def _place(source: str, trace: Trace) -> tuple[int, int]:
    """Rank and number of ranks: as the trace says, or its name; -1 and 0 where neither does."""
    known = as_tree(trace.distributed) or {}
    match = _RANK.search(source)
    rank = _whole(known.get("rank"))
    return rank if rank >= 0 else int(match[1]) if match else -1, max(_whole(known.get("world_size")), 0)


def _whole(value: object) -> int:
    """A rank or a number of ranks; -1 where VALUE is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_RANKS else -1


def _device(trace: Trace) -> str:
    devices = trace.devices
    if not isinstance(devices, list):
        return ""
    names = [(as_tree(one) or {}).get("name") for one in cast("list[object]", devices)]
    return next((name[:100] for name in names if isinstance(name, str)), "")
