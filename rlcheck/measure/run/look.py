"""Statistics of one curve, for checks: pure, without numpy, quick on 10,000 points.

A curve may be empty or short: functions return None (or nothing) where what they measure is not defined.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from statistics import fmean
from typing import NamedTuple

from rlcheck.facts.run import Curve
from rlcheck.text import BLOCKS, sparkline

ASCII_BLOCKS = "_.,-=+*#"
MAD_TO_SIGMA = 1.4826
"""Of a normal distribution, the median absolute deviation times this is the standard deviation."""
STRONGEST = 1e6
"""What `Change.strength` is cut to; a step in a curve without any noise reaches it."""
SPIKE_MEMORY = 15
_COARSE = 400
_SLOPE_POINTS = 60


class Change(NamedTuple):
    """A step change. `step`: the first of the new level; `before`, `after`: medians next to it on either side.

    `strength`: the jump in standard deviations of the jumps that the rest of the curve makes over as many points.
    Noise alone reaches about 4, a steady trend about 1; above 8 it is a change.
    """

    step: int
    before: float
    after: float
    strength: float


def median(values: Iterable[float]) -> float | None:
    """The median of VALUES; None if there are none."""
    ordered = sorted(values)
    return _middle(ordered) if ordered else None


def mad(values: Iterable[float]) -> float | None:
    """Median absolute deviation from the median, not scaled; None without values."""
    known = list(values)
    if not known:
        return None
    centre = _middle(sorted(known))
    return _middle(sorted(abs(value - centre) for value in known))


def noise(curve: Curve) -> float | None:
    """Standard deviation of CURVE from point to point, whatever its trend; spikes count little. None below 3 points."""
    if len(curve.values) < 3:
        return None
    spread = mad(after - before for before, after in zip(curve.values, curve.values[1:], strict=False))
    return None if spread is None else spread * MAD_TO_SIGMA / math.sqrt(2)


def window(curve: Curve, first: int, last: int) -> Curve:
    """CURVE from step FIRST to step LAST, both included."""
    low, high = bisect_left(curve.steps, first), bisect_right(curve.steps, last)
    lost = tuple(step for step in curve.nonfinite if first <= step <= last)
    return Curve(steps=curve.steps[low:high], values=curve.values[low:high], nonfinite=lost, name=curve.name)


def value_at(curve: Curve, step: int) -> float | None:
    """The value at STEP; None if the curve has none there."""
    place = bisect_left(curve.steps, step)
    return curve.values[place] if place < len(curve.steps) and curve.steps[place] == step else None


def smooth(curve: Curve, k: int) -> Curve:
    """CURVE with each value replaced by the median of itself and K points on either side (fewer at the ends)."""
    ordered: list[float] = sorted(curve.values[:k])
    smoothed: list[float] = []
    for place in range(len(curve.values)):
        if place + k < len(curve.values):
            insort(ordered, curve.values[place + k])
        if place > k:
            del ordered[bisect_left(ordered, curve.values[place - k - 1])]
        smoothed.append(_middle(ordered))
    return Curve(steps=curve.steps, values=tuple(smoothed), nonfinite=curve.nonfinite, name=curve.name)


def first_last(curve: Curve, share: float = 0.2) -> tuple[float, float] | None:
    """Medians of the first and of the last SHARE of the points, of one point at least; None below 2 points."""
    if len(curve.values) < 2:
        return None
    count = max(1, int(len(curve.values) * share))
    return _middle(sorted(curve.values[:count])), _middle(sorted(curve.values[-count:]))


def slope(curve: Curve) -> float | None:
    """Change per step: the median slope between pairs of points (Theil-Sen); long curves are binned first.

    None below 3 points.
    """
    if len(curve.values) < 3:
        return None
    points = [
        (_middle(sorted(curve.steps[low:high])), _middle(sorted(curve.values[low:high])))
        for low, high in _bins(len(curve.values), _SLOPE_POINTS)
    ]
    return median((after[1] - before[1]) / (after[0] - before[0]) for before, after in combinations(points, 2))


def change_point(curve: Curve) -> Change | None:
    """The largest step change of CURVE; None below 6 points and where the level never changes.

    Medians of the points before and after each place are compared, so that a single outlier is no change; the jump is
    set against those of all other places, so that noise and a steady trend are none either. See `Change.strength`.
    """
    values = curve.values
    if len(values) < 6:
        return None
    bins = _bins(len(values), _COARSE)
    coarse = values if len(bins) == len(values) else [_middle(sorted(values[low:high])) for low, high in bins]
    reach = max(3, min(25, len(coarse) // 8))
    jumps = _jumps(coarse, reach)
    usual = _middle(sorted(jumps))
    best = max(range(len(jumps)), key=lambda place: abs(jumps[place] - usual))
    if not jumps[best]:
        return None
    low = bins[max(0, best + 2 - reach)][0]
    high = bins[min(len(bins), best + 2 + reach) - 1][1]
    place = low + _split(values[low:high])
    before, after = _middle(sorted(values[low:place])), _middle(sorted(values[place:high]))
    spread = MAD_TO_SIGMA * (mad(jumps) or 0.0)
    strength = min(STRONGEST, abs(jumps[best] - usual) / max(spread, abs(jumps[best]) / STRONGEST))
    return Change(curve.steps[place], before, after, strength)


def spikes(curve: Curve, factor: float) -> tuple[int, ...]:
    """Steps whose value is above FACTOR times the median of the (up to 15, at least 3) points before it.

    For metrics that are never negative: where that median is not above zero, nothing is a spike. After a lasting rise
    the first few points of the new level count, until the median has followed.
    """
    found: list[int] = []
    ordered: list[float] = []
    for place, value in enumerate(curve.values):
        if place >= 3 and value > factor * _middle(ordered) > 0:
            found.append(curve.steps[place])
        insort(ordered, value)
        if place >= SPIKE_MEMORY:
            del ordered[bisect_left(ordered, curve.values[place - SPIKE_MEMORY])]
    return tuple(found)


def left_band(curve: Curve, low: float | None, high: float | None, persist: int = 3) -> int | None:
    """The first step from which PERSIST points in a row lie below LOW or above HIGH (None: no such bound).

    A value on the bound is inside. A curve of fewer than PERSIST points never leaves.
    """
    outside = 0
    for place, value in enumerate(curve.values):
        left = (low is not None and value < low) or (high is not None and value > high)
        outside = outside + 1 if left else 0
        if outside == persist:
            return curve.steps[place - persist + 1]
    return None


def correlation(one: Curve, other: Curve) -> float | None:
    """Pearson correlation over the steps that both have; None below 3 of them, or if one does not vary there."""
    there = dict(zip(other.steps, other.values, strict=True))
    pairs = [(value, there[step]) for step, value in zip(one.steps, one.values, strict=True) if step in there]
    if len(pairs) < 3:
        return None
    centre_x, centre_y = fmean(x for x, _ in pairs), fmean(y for _, y in pairs)
    spread_x = math.sqrt(sum((x - centre_x) * (x - centre_x) for x, _ in pairs))
    spread_y = math.sqrt(sum((y - centre_y) * (y - centre_y) for _, y in pairs))
    if not (0 < spread_x < math.inf and 0 < spread_y < math.inf):
        return None
    together = sum((x - centre_x) / spread_x * ((y - centre_y) / spread_y) for x, y in pairs)
    return max(-1.0, min(1.0, together))


def chart(curve: Curve, width: int = 48, ascii: bool = False) -> str:
    """One line of at most WIDTH characters, the curve's lowest value as the lowest block; "" if it is empty.

    Each character is the median of its share of the points.
    """
    blocks = ASCII_BLOCKS if ascii else BLOCKS
    values = [_middle(sorted(curve.values[low:high])) for low, high in _bins(len(curve.values), width)]
    if not values:
        return ""
    low, span = min(values), max(values) - min(values)
    if not span or not math.isfinite(span):
        return blocks[0 if not span else -1] * len(values)
    return sparkline(((value - low) / span for value in values), blocks)


def charted(name: str, curve: Curve, width: int = 48, ascii: bool = False) -> str:
    """A line for a finding's details: NAME, the chart, lowest and highest value, and the steps."""
    if not curve.values:
        return f"{name}: no values"
    ends = f"{min(curve.values):.4g} to {max(curve.values):.4g}"
    return f"{name} {chart(curve, width, ascii)} {ends}, {steps_words(curve.steps[0], curve.steps[-1])}"


def steps_words(first: int, last: int) -> str:
    """`step 5` or `steps 5 to 9`."""
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _middle(ordered: Sequence[float]) -> float:
    """The median of ORDERED, which is sorted and not empty."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else ordered[half - 1] / 2 + ordered[half] / 2


def _bins(count: int, most: int) -> list[tuple[int, int]]:
    """COUNT points cut into at most MOST spans of about the same size: (first, end), none empty."""
    number = min(count, most)
    edges = [place * count // number for place in range(number + 1)] if number else [0]
    return list(pairwise(edges))


def _jumps(values: Sequence[float], reach: int) -> list[float]:
    """For each place from the third value to the last but one: the median after it minus the median before it."""
    return [
        _middle(sorted(values[place : place + reach])) - _middle(sorted(values[max(0, place - reach) : place]))
        for place in range(2, len(values) - 1)
    ]


def _split(values: Sequence[float]) -> int:
    """Where two constant levels fit VALUES best (least squares), two values on either side at least."""
    levels = [value - values[0] for value in values]
    whole, before = sum(levels), levels[0]
    best, place = -math.inf, 2
    for cut in range(2, len(levels) - 1):
        before += levels[cut - 1]
        after = whole - before
        gain = before * before / cut + after * after / (len(levels) - cut)
        if gain > best:
            best, place = gain, cut
    return place
