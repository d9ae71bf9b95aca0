"""rltrain's `clock.jsonl`: own work and waits of each rank, and how requests flowed through its engines."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from rlcheck.facts.base import Struct
from rlcheck.facts.slow import EngineUse, GpuBusy, RankTimes, Tail
from rlcheck.measure.run.jsonl import each_line
from rlcheck.measure.run.look import median
from rlcheck.measure.slow.limits import limit
from rlcheck.measure.slow.tail import usual

NAME = "clock.jsonl"
_WARM_UP = 2
_FEWEST = 3
_MOST_STEPS = 100_000
_LEAST_SHARE = 0.1
"""A phase of a smaller part of the ranks' time says nothing of how fast they are."""
_ALL = "all phases"
_RECENT = 16
"""The last steps of a run are judged alone, too: a rank may have become slow."""
_LONG = 3 * _RECENT

_Number = Annotated[float, Meta(ge=0, le=1e15)]
_Seconds = Annotated[float, Meta(ge=0, le=1e9)]
_Count = Annotated[int, Meta(ge=-1, le=10**15)]


class Spans(Struct, frozen=True):
    """Of one method and step, seconds by rank, as rltrain writes them."""

    ranks: tuple[int, ...] = ()
    wall_s: tuple[_Seconds, ...] = ()
    together_s: tuple[_Seconds, ...] = ()
    cpu_s: tuple[_Seconds, ...] = ()
    queued_s: tuple[_Seconds, ...] = ()


class Round(Struct, frozen=True):
    """One round of one engine. `slots`: for each twentieth of its time requests that had not ended, that ran and that
    waited, the fullest of the cache, and passes. `first_s`: until its first pass was done; `paces`: after that, by
    powers of two of running requests, their mean, passes, and seconds. `most`: requests that ran at once."""

    engine: _Count = 0
    wall_s: _Seconds = 0.0
    requests: _Count = 0
    prompt_tokens: _Count = 0
    tokens: _Count = 0
    passes: _Count = 0
    lengths: tuple[_Number, ...] = ()
    slots: tuple[tuple[_Number, ...], ...] = ()
    first_s: _Seconds = 0.0
    paces: tuple[tuple[_Number, _Number, _Seconds], ...] = ()
    most: _Count = 0
    preemptions: _Count = -1
    cached_tokens: _Count = -1


class Step(Struct, frozen=True):
    """A line."""

    step: int
    train: dict[str, Spans] = {}
    rounds: tuple[Round, ...] = ()
    gpu_busy: dict[str, dict[str, Annotated[float, Meta(ge=0, le=1)]]] = {}


@dataclass
class Clock:
    """What the file says. `notes`: what could not be read."""

    ranks: list[RankTimes] = field(default_factory=list[RankTimes])
    tail: Tail | None = None
    engines: list[EngineUse] = field(default_factory=list[EngineUse])
    gpus: list[GpuBusy] = field(default_factory=list[GpuBusy])
    floor_s: float = 0.0
    floor_why: str = ""
    notes: list[str] = field(default_factory=list[str])


def read_clock(path: Path, *, warm: bool = False) -> Clock:
    """The clock of a run at PATH; a line that is cut or no such line is left out.

    Args:
        path: the file.
        warm: its first steps are like all others: they count, too.

    Raises:
        OSError, CurveError: it cannot be read.
    """
    decoder, steps, bad = msgspec.json.Decoder(Step), dict[int, Step](), 0
    for line in each_line(path):
        try:
            step = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            bad += bool(line.strip())
            continue
        steps[step.step] = step
        if len(steps) >= _MOST_STEPS:
            break
    found = Clock(notes=[f"{path.name}: {bad} lines are cut, or none of rltrain's clock"] if bad else [])
    trained = [steps[number] for number in sorted(steps) if number > 0]
    kept = trained if warm or len(trained) < _WARM_UP + _FEWEST else trained[_WARM_UP:]
    found.ranks = _ranks(kept)
    rounds = [round_ for step in kept for round_ in step.rounds if round_.requests > 0 and round_.slots]
    found.tail = usual([tail for round_ in rounds if (tail := _tail(round_)) is not None])
    found.engines = _engines(rounds)
    found.floor_s, found.floor_why = _floor(kept)
    found.gpus = _gpus(kept)
    return found


def _own(spans: Spans) -> tuple[float, ...]:
    """Seconds of own work by rank: no collective, and a processor (or device) to do it."""
    columns = (spans.wall_s, spans.together_s, spans.queued_s)
    if len({len(column) for column in (spans.ranks, *columns)}) != 1 or spans.ranks != tuple(range(len(spans.ranks))):
        return ()
    return tuple(max(wall - together - queued, 0.0) for wall, together, queued in zip(*columns, strict=True))


def _ranks(steps: Sequence[Step]) -> list[RankTimes]:
    """By method, and over the sums of all methods, which are steadier; of a long run for its last steps alone, too."""
    found = _whole(steps, "")
    if len(steps) >= _LONG:
        found += _whole(steps[-_RECENT:], f", the last {_RECENT} steps")
    return found


def _whole(steps: Sequence[Step], when: str) -> list[RankTimes]:
    own: defaultdict[str, list[tuple[float, ...]]] = defaultdict(list)
    beside: defaultdict[str, list[tuple[tuple[float, ...], tuple[float, ...]]]] = defaultdict(list)
    for step in steps:
        sums: list[tuple[float, ...]] = []
        waits: list[tuple[float, ...]] = []
        queues: list[tuple[float, ...]] = []
        for method, spans in step.train.items():
            times = _own(spans)
            if len(times) > 1:
                own[method].append(times)
                beside[method].append((spans.together_s, spans.queued_s))
                sums.append(times)
                waits.append(spans.together_s)
                queues.append(spans.queued_s)
        if sums and len({len(one) for one in sums}) == 1:
            own[_ALL].append(_added(sums))
            beside[_ALL].append((_added(waits), _added(queues)))
    kept = {
        name: times for name, times in own.items() if len(times) >= _FEWEST and len({len(one) for one in times}) == 1
    }
    found = [_medians(name + when, times, beside[name]) for name, times in kept.items()]
    whole = max((sum(one.own) for one in found), default=0.0)
    return sorted((one for one in found if sum(one.own) >= _LEAST_SHARE * whole), key=lambda one: -sum(one.own))


def _added(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))


def _medians(
    name: str, own: Sequence[tuple[float, ...]], beside: Sequence[tuple[tuple[float, ...], tuple[float, ...]]]
) -> RankTimes:
    """BESIDE: of each step and rank, seconds in collectives, and without a processor."""

    def by_rank(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(median(column) or 0.0 for column in zip(*rows, strict=True))

    paces = [_pace(row) for row in own]
    columns = tuple(zip(*paces, strict=True))
    bars = tuple(map(_bar, columns))
    slower = tuple(
        sum(pace > (1 + bar) / 2 for pace in column) / len(column) for bar, column in zip(bars, columns, strict=True)
    )
    return RankTimes(phase=name, own=by_rank(own), waited=by_rank([one for one, _ in beside]), pace=by_rank(paces),
                     bars=bars, slower=slower, queued=by_rank([one for _, one in beside]),
                     steps=len(own), source=NAME)  # fmt: skip


def _pace(row: tuple[float, ...]) -> tuple[float, ...]:
    others = [median((*row[:rank], *row[rank + 1 :])) or 0.0 for rank in range(len(row))]
    return tuple(own / other if other > 0 else 1.0 for own, other in zip(row, others, strict=True))


def _bar(paces: Sequence[float]) -> float:
    """The pace from which on a rank of these PACES, one a step, is slow: nearer to 1 where they hardly differ, farther
    where they differ much, as on a machine under load.

    By the median's own error: one odd step moves neither that nor the median of the steps' distances from it.
    """
    most = limit("slow_rank")
    if len(paces) < limit("slow_rank_fewest"):
        return most
    middle = median(paces) or 0.0
    apart = median([abs(pace - middle) for pace in paces]) or 0.0
    error = apart / math.sqrt(len(paces))
    near = min(most, 1 + limit("slow_rank_noise") * error)
    return max(limit("slow_rank_least"), near, 1 + limit("slow_rank_loud") * error)


def _tail(one: Round) -> Tail | None:
    """How a round ended, by what its engine counted."""
    left = [slot[0] for slot in one.slots if slot]
    if len(left) < 2 or one.requests < 2:
        return None
    part = limit("tail_part")
    return Tail(
        requests=one.requests,
        running=int(left[min(len(left) - 1, round((1 - part) * len(left)))]),
        part=part,
        occupied=_occupied(one),
        longest=max(one.lengths, default=0.0),
        mean=one.tokens / one.requests,
        source=NAME,
    )


def _occupied(one: Round) -> float:
    """Mean share of places in use, by time."""
    seconds = sum(pace[2] for pace in one.paces)
    most = _places(one)
    if seconds <= 0 or most <= 0:
        return 1.0
    return min(1.0, sum(pace[0] * pace[2] for pace in one.paces) / seconds / most)


def _places(one: Round) -> float:
    """Requests that ran at once, at most."""
    return max(float(one.most), max((slot[1] for slot in one.slots if len(slot) > 1), default=0.0))


def _engines(rounds: Sequence[Round]) -> list[EngineUse]:
    by_engine: defaultdict[int, list[Round]] = defaultdict(list)
    for one in rounds:
        by_engine[one.engine].append(one)
    return [_engine(number, by_engine[number]) for number in sorted(by_engine)]


def _engine(number: int, rounds: Sequence[Round]) -> EngineUse:
    slots = [slot for one in rounds for slot in one.slots if len(slot) >= 4]
    counted = [one.preemptions for one in rounds if one.preemptions >= 0]
    cached = [one.cached_tokens for one in rounds if one.cached_tokens >= 0]
    prompts = sum(one.prompt_tokens for one in rounds)
    return EngineUse(
        source=f"engine {number}",
        scrapes=len(rounds),
        running=sum(slot[1] for slot in slots) / len(slots) if slots else -1,
        waiting=sum(slot[2] for slot in slots) / len(slots) if slots else -1,
        # An engine that does not say it leaves 0 there; one that has requests is never at 0.
        kv_usage=max((slot[3] for slot in slots), default=0.0) or -1,
        preemptions=sum(counted) if counted else -1,
        requests=sum(one.requests for one in rounds),
        tokens=sum(one.tokens for one in rounds),
        cache_hits=sum(cached) / prompts if cached and prompts else -1,
    )


def _gpus(steps: Sequence[Step]) -> list[GpuBusy]:
    shares: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for step in steps:
        for node, gpus in step.gpu_busy.items():
            for gpu, share in gpus.items():
                shares[node, gpu].append(share)
    return [GpuBusy(*place, share=median(found) or 0.0, steps=len(found)) for place, found in sorted(shares.items())]


def _floor(steps: Sequence[Step]) -> tuple[float, str]:
    """Generation without a tail, preemption or wait: the prompts, then all tokens in passes with all places in use."""
    found: list[float] = []
    fastest: list[float] = []
    for step in steps:
        seconds = [0.0]
        for one in step.rounds:
            if pace := _pace_of_full(one):
                fastest.append(pace)
                seconds.append(one.first_s + one.tokens / pace)
        if max(seconds) > 0:
            found.append(max(seconds))
    if not found:
        return 0.0, ""
    pace = median(fastest) or 0.0
    return median(found) or 0.0, f"all tokens at the pace of its own full passes, {pace:.3g} tokens/s an engine"


def _pace_of_full(one: Round) -> float:
    """Tokens a second while all places are in use; 0 where the round does not say it.

    A running request gets a token a pass. The fullest passes of a round with a tail have lost many requests already:
    how much longer one with all places would take is seen from those with fewer requests.
    """
    whole = sum(pace[2] for pace in one.paces)
    # What took a twentieth of the time is no accident.
    passes = sorted((ran, took / number) for ran, number, took in one.paces if number > 0 and took > 0.05 * whole)
    if not passes or passes[-1][0] <= 0:
        return 0.0
    ran, took = passes[-1]
    each = median([(took - less) / (ran - fewer) for fewer, less in passes if fewer < ran]) or 0.0
    # Not less than one with fewer requests, and no more than its share for each.
    each = min(max(each, 0.0), took / ran)
    full = max(_places(one), ran)
    return max(full / (took + each * (full - ran)), *(fewer / less for fewer, less in passes if less > 0), 0.0)
