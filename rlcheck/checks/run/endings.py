"""Where answers end: the limit of their length, who reaches it, and whether what is right would fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pvariance
from typing import NamedTuple

from rlcheck.checks.run.behaviour import solved
from rlcheck.checks.run.common import curve_of, number_setting, samples_of
from rlcheck.checks.run.likeness import agreements, expects_text, judged
from rlcheck.facts.run import Curve, RunFacts, SampleRow
from rlcheck.measure.run.limits import limit

LIMIT = "data.max_response_length"
MEAN, LONGEST, SHORTEST = "response_length/mean", "response_length/max", "response_length/min"
CLIPPED = "response_length/clip_ratio"
_FEW = 4


class Bound(NamedTuple):
    """The length at which answers are cut, in tokens. `stated`: what the config says; 0: it does not say."""

    tokens: float
    stated: float

    @property
    def hidden(self) -> bool:
        """Answers are cut below what the config says."""
        return 0 < self.tokens < self.stated


def bound_of(run: RunFacts) -> Bound | None:
    """What the config says, or the length that the longest answer of every single step has; None: neither is there.

    An answer that was cut is as long as allowed: where some were, the longest of the run says the limit. Trainers that
    log every few steps write means, so that the longest answers of two lines may differ.
    """
    stated = number_setting(run, LIMIT) or 0.0
    longest = curve_of(run, LONGEST)
    if longest is None:
        return Bound(stated, stated) if stated else None
    top = max(longest.values)
    # Lengths that happen by themselves differ: the same longest one in every step is a wall.
    clipped = curve_of(run, CLIPPED)
    cut = clipped is not None and max(clipped.values, default=0.0) > 0
    wall = len(longest.values) >= limit("steps_to_judge") and (min(longest.values) == top or cut) and top > 1
    if stated and top < stated and wall and min(longest.values) == top:
        return Bound(top, stated)
    return Bound(stated, stated) if stated else Bound(top, 0.0) if wall else None


def all_at_limit(run: RunFacts, bound: Bound) -> list[tuple[int, bool]]:
    """For each step whether no answer ended before the limit; empty where the run does not say."""
    shortest, clipped = curve_of(run, SHORTEST), curve_of(run, CLIPPED)
    if clipped is not None and (shortest is None or not bound.stated):
        return [(step, value >= 1) for step, value in zip(clipped.steps, clipped.values, strict=True)]
    if shortest is not None:
        wall = bound.stated or bound.tokens
        return [(step, value >= wall) for step, value in zip(shortest.steps, shortest.values, strict=True)]
    return []


def with_length(run: RunFacts) -> tuple[SampleRow, ...]:
    """Samples whose length in tokens is known."""
    return tuple(row for row in samples_of(run) if row.length >= 0)


def share_at_limit(run: RunFacts, bound: Bound) -> Curve | None:
    """Share of answers at the limit by step. Where answers are cut below the limit that is stated: of samples, or what
    the mean length leaves no less than."""
    if not bound.hidden:
        return curve_of(run, CLIPPED)
    rows = with_length(run)
    steps = sorted({row.step for row in rows})
    shares = [fmean(row.length >= bound.tokens for row in rows if row.step == step) for step in steps]
    if steps:
        return Curve(steps=tuple(steps), values=tuple(shares))
    mean = curve_of(run, MEAN)
    if mean is None:
        return None
    # Lengths are whole numbers: an answer that is not at the limit is a token shorter at least.
    return Curve(steps=mean.steps, values=tuple(max(0.0, 1 - bound.tokens + value) for value in mean.values))


class Fit(NamedTuple):
    """How many characters of the kind that right answers are made of fit into an answer, and how many they need.

    `sure`: the ground truth is what an answer has to say, and there are samples enough to blame the limit.
    """

    holds: int
    needs: int
    sure: bool

    @property
    def whole(self) -> bool:
        """A right answer fits."""
        return self.holds >= self.needs

    def room_to_end(self, bound: Bound) -> bool:
        """A right answer leaves a token for its end; told only where a token holds one character at most."""
        return self.holds != bound.tokens or self.holds > self.needs


def fit_of(run: RunFacts, bound: Bound) -> Fit | None:
    """Whether the limit holds the right answers; None where the ground truth is not what an answer has to say."""
    rows = judged(with_length(run))
    at_limit = [row for row in rows if row.length >= bound.tokens]
    if len(rows) < _FEW or not at_limit or not expects_text(rows):
        return None
    kinds = {_kind(letter) for row in rows for letter in row.ground_truth.strip()}
    holds = max(sum(_kind(letter) in kinds for letter in row.response.strip()) for row in rows)
    lengths = sorted(len(row.ground_truth.strip()) for row in rows)
    sure = len(rows) >= limit("sign_rows") and _is_wanted(rows, at_limit)
    return Fit(holds, lengths[len(lengths) // 2], sure)


def _kind(letter: str) -> str:
    """Digits are of one kind, letters of another; any other character is of its own."""
    return "0" if letter.isdigit() else "a" if letter.isalpha() else letter


def _is_wanted(rows: Sequence[SampleRow], at_limit: Sequence[SampleRow]) -> bool:
    """The reward goes with likeness to the ground truth, or an answer stops in the middle of it."""
    if any(one.t >= limit("sign_t") for one in agreements(rows)):
        return True
    return any(row.ground_truth.strip().startswith(said) for row in at_limit if (said := row.response.strip()))


class Cost(NamedTuple):
    """What answers at the limit earn, and those that ended; by how many standard deviations less."""

    cut: float
    ended: float
    sigmas: float


def cost_of(run: RunFacts, bound: Bound) -> Cost | None:
    """Rewards of samples at the limit against those that ended; None with fewer than 4 of either."""
    rows = with_length(run)
    cut = [row.reward for row in rows if row.length >= bound.tokens]
    ended = [row.reward for row in rows if row.length < bound.tokens]
    if min(len(cut), len(ended)) < 4:
        return None
    spread = math.sqrt(pvariance(cut) / len(cut) + pvariance(ended) / len(ended))
    less = fmean(ended) - fmean(cut)
    return Cost(fmean(cut), fmean(ended), less / spread if spread else math.copysign(math.inf, less) if less else 0.0)


def is_wall(run: RunFacts, bound: Bound) -> bool:
    """Whether answers are cut below the limit that the config states: many have that very length, some are shorter,
    none is longer. Where all have one length, or nearly, they may well end there by themselves."""
    mean = curve_of(run, MEAN)
    if not bound.hidden or mean is None or solved(run):
        return False
    return fmean(mean.values) <= bound.tokens - limit("wall_gap")
