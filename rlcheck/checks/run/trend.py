"""How far a curve has come, in units of its own noise, and where in its range it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rlcheck.checks.run.behaviour import REWARD
from rlcheck.checks.run.common import curve_of
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.look import first_last, noise

MEDIAN_TO_MEAN = 1.2533
"""Of a normal distribution, the median of many values scatters by this much more than their mean."""
_FEW = 4
"""So many points more than there are would be needed to trust their deviation."""


class Rise(NamedTuple):
    """Medians of the first and last fifth, and their difference in standard deviations of such a difference."""

    first: float
    last: float
    sigmas: float

    @property
    def change(self) -> float:
        """Last less first."""
        return self.last - self.first


def wobble(curve: Curve) -> float:
    """Standard deviation of a point: of typical points, or half of what all points give, if that is more.

    A curve that mostly stands still has no typical noise; what moves it then is not to count as infinitely many. Few
    points tell their deviation badly, often too small: it counts for more (a third at 13 points, 4 % at 100).
    """
    if len(curve.values) < 3:
        return 0.0
    # `math.dist` scales before it squares: values near 1e300 do not overflow.
    moves = math.dist(curve.values[1:], curve.values[:-1]) / math.sqrt(len(curve.values) - 1)
    return max(noise(curve) or 0.0, moves / math.sqrt(2) / 2) * (1 + _FEW / (len(curve.values) - 1))


def rise(curve: Curve | None) -> Rise | None:
    """From the first to the last fifth of CURVE; None below 3 points."""
    ends = first_last(curve) if curve is not None else None
    if curve is None or ends is None or len(curve.values) < 3:
        return None
    count = max(1, len(curve.values) // 5)
    spread = wobble(curve) * MEDIAN_TO_MEAN * math.sqrt(2 / count)
    change = ends[1] - ends[0]
    sigmas = change / spread if spread else math.copysign(math.inf, change) if change else 0.0
    return Rise(*ends, sigmas)


class Rewards(NamedTuple):
    """The reward of answers: the mean by step, and the lowest and highest that any answer earned."""

    mean: Curve
    low: float
    high: float

    @property
    def span(self) -> float:
        """Between the lowest and the highest."""
        return self.high - self.low


def rewards_of(run: RunFacts) -> Rewards | None:
    """The reward of the run; None where it has none. Without extremes by step, those of the mean stand for them."""
    mean = curve_of(run, *REWARD)
    if mean is None:
        return None
    best = curve_of(run, "critic/score/max", "critic/rewards/max") or mean
    worst = curve_of(run, "critic/score/min", "critic/rewards/min") or mean
    return Rewards(mean, min(worst.values), max(best.values))


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's, ties at their mean rank; None where one of the two does not vary."""
    left, right = _ranks(one), _ranks(other)
    centre = (len(left) + 1) / 2
    top = math.fsum((a - centre) * (b - centre) for a, b in zip(left, right, strict=True))
    below = math.fsum((a - centre) ** 2 for a in left) * math.fsum((b - centre) ** 2 for b in right)
    return max(-1.0, min(1.0, top / math.sqrt(below))) if below > 0 else None


def student_t(correlation: float, count: int) -> float:
    """Of a correlation over COUNT pairs."""
    rest = max(1e-9, 1 - correlation * correlation)
    return correlation * math.sqrt(max(0, count - 2) / rest)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda place: values[place])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            ranks[place] = (start + end) / 2 + 1
        start = end + 1
    return ranks
