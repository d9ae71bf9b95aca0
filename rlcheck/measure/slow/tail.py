"""How a round of generation ends: from the lengths of its answers, all asked for at once."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rlcheck.facts.slow import Tail
from rlcheck.measure.run.look import median
from rlcheck.measure.slow.limits import limit

_FEWEST = 16
_MOST = 50_000


def tail_of(lengths: Sequence[float], places: int, source: str) -> Tail | None:
    """The round that answers of LENGTHS (tokens) make, PLACES at a time; None where they are too few to say."""
    lengths = [float(one) for one in lengths[:_MOST] if one > 0]
    if len(lengths) < _FEWEST or not places:
        return None
    free = [0.0] * min(places, len(lengths))
    ends: list[float] = []
    for length in lengths:
        ends.append(heapq.heappop(free) + length)
        heapq.heappush(free, ends[-1])
    whole, part = max(ends), limit("tail_part")
    return Tail(
        requests=len(lengths),
        running=sum(end > (1 - part) * whole for end in ends),
        part=part,
        occupied=sum(lengths) / (whole * len(free)),
        longest=max(lengths),
        mean=sum(lengths) / len(lengths),
        source=source,
    )


def usual(tails: Sequence[Tail]) -> Tail | None:
    """Of several rounds the one in the middle, by the share of places in use."""
    if not tails:
        return None
    middle = median(one.occupied for one in tails) or 0.0
    return min(tails, key=lambda one: abs(one.occupied - middle))
