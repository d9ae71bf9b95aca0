"""Single steps whose gradient is far longer than those around it, and what they did to the run.

What is usual is judged among steps that had something to learn from: with all answers to a prompt alike there is no
gradient, and next to none every other one is a spike. What a spike did counts if it lasts to the end of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from rlcheck.checks.run.behaviour import (
    CLIPPED,
    EDGE,
    ENTROPY,
    NEARBY,
    REWARD,
    STEP_KL,
    Move,
    end_of,
    reward_span,
    solved,
)
from rlcheck.checks.run.common import curve_of
from rlcheck.checks.run.settings import CRITIC_GRAD_CLIP, GRAD_CLIP, clip_of
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import first_last, median, slope, window

MEMORY = 15
TRL_CLIP = 1.0
"""`max_grad_norm` of transformers' TrainingArguments, where a run of TRL does not say; the norm is logged before it."""
_FEWEST = 3
_NEIGHBOURS = 50
_LASTS = 5
"""Points on either side that a lasting change needs."""
_SIGMAS = 2
"""Medians of ten points differ by half a standard deviation of one; so they never do by chance."""
_JUMP_OF_NOISE = 1.128
"""Of a normal distribution, the mean distance of two values in standard deviations."""


class Spike(NamedTuple):
    """One step of one role: the norm of its gradient, and the usual norm around it."""

    role: str
    step: int
    norm: float
    usual: float

    @property
    def metric(self) -> str:
        """The metric that shows it."""
        return f"{self.role}/grad_norm"


def spikes_of(run: RunFacts, role: str) -> tuple[Spike, ...]:
    """Steps whose gradient norm is far above the median of the steps before (or, at the start, after) them."""
    curve = curve_of(run, f"{role}/grad_norm")
    if curve is None:
        return ()
    idle = _without_signal(run) if role == "actor" else frozenset[int]()
    if idle:
        points = [(step, value) for step, value in zip(curve.steps, curve.values, strict=True) if step not in idle]
        curve = Curve(steps=tuple(step for step, _ in points), values=tuple(value for _, value in points))
    factor, found = limit("spike_factor"), list[Spike]()
    for place in _candidates(curve.values, factor):
        value, usual, high = curve.values[place], _usual(curve, place), _high(curve, place)
        if usual is not None and value > factor * usual > 0 and value > _FEWEST * high:
            found.append(Spike(role, curve.steps[place], value, max(usual, high / factor)))
    return tuple(found)


def _without_signal(run: RunFacts) -> frozenset[int]:
    """Steps in which every group of answers had one reward, so that nothing was to be learned."""
    found: set[int] = set()
    for name, level in (("train/zero_advantage_groups", 1.0), ("reward_std", 0.0), ("train/reward_std", 0.0)):
        curve = run.curves.get(name)
        if curve is not None:
            found.update(step for step, value in zip(curve.steps, curve.values, strict=True) if value == level)
    return frozenset(found)


def _high(curve: Curve, place: int) -> float:
    """What one norm in ten around PLACE is above, the two highest left out: where many are long, none is a spike."""
    first, last = max(0, place - _NEIGHBOURS), place + 1 + _NEIGHBOURS
    others = sorted((*curve.values[first:place], *curve.values[place + 1 : last]))
    return others[-1 - max(2, len(others) // 10)] if len(others) > _FEWEST else 0.0


def _candidates(values: tuple[float, ...], factor: float) -> list[int]:
    """Places that may hold a spike: most parts of a long run hold none, as their lowest and highest value tell."""
    found: list[int] = []
    for first in range(0, len(values), MEMORY):
        last = min(first + MEMORY, len(values))
        lowest = min(values[max(0, first - MEMORY) : last + MEMORY])
        if max(values[first:last]) > factor * lowest:
            found.extend(place for place in range(first, last) if values[place] > factor * lowest)
    return found


def _usual(curve: Curve, place: int) -> float | None:
    """The median of the points before PLACE; of those after it where there are few. None: too few on both sides."""
    before = curve.values[max(0, place - MEMORY) : place]
    others = before if len(before) >= _FEWEST else curve.values[place + 1 : place + 1 + MEMORY]
    return median(others) if len(others) >= _FEWEST else None


def is_held(run: RunFacts, spike: Spike) -> bool | None:
    """Whether the run's gradient clip cut the spike down to about its usual size; None where no config says."""
    said, most = clip_of(run, GRAD_CLIP if spike.role == "actor" else CRITIC_GRAD_CLIP)
    if not said:
        huge = spike.norm >= limit("huge_spike_factor") * spike.usual
        return True if run.framework == "trl" and spike.norm > TRL_CLIP and not huge else None
    return most is not None and most < limit("spike_factor") * max(spike.usual, 1.0) and most < spike.norm


def harm_of(run: RunFacts, spike: Spike) -> tuple[str, ...]:
    """What changed for the worse from the steps before the spike to those after it, and stayed so, in words."""
    looks = (_reward_fell, _entropy_jumped, _policy_leaps, _stands_still, _reward_stalls, _critic_lost)
    return tuple(words for look in looks if (words := look(run, spike)))


def _lasting(curve: Curve | None, step: int) -> Move | None:
    """The change around STEP if it lasts to the end of CURVE; None where it does not, or too little is known.

    It must leave what nine in ten of the points before it reached. Noise is that of all points before the step: rewards
    of few kinds are often the same ten times in a row.
    """
    if curve is None or not curve.steps:
        return None
    before = window(curve, curve.steps[0], step - 1).values[-_NEIGHBOURS:]
    after = window(curve, step + 1, curve.steps[-1]).values
    if min(len(before), len(after)) < _LASTS:
        return None
    trend = slope(Curve(steps=tuple(range(len(before))), values=before)) or 0.0
    most = _SIGMAS * _rough_noise(before) + 2 * NEARBY * abs(trend)
    usual, ordered = median(before[-NEARBY:]) or 0.0, sorted(before)
    low, high = min(ordered[len(before) // 10], usual - most), max(ordered[-1 - len(before) // 10], usual + most)
    levels = (median(after[:NEARBY]) or 0.0, median(after[-max(_LASTS, len(after) // 5) :]) or 0.0)
    left = all(level < low for level in levels) or all(level > high for level in levels)
    return Move(usual, levels[0], most) if left else None


def _rough_noise(values: Sequence[float]) -> float:
    """Standard deviation from point to point, not 0 where most neighbours are equal."""
    return fmean(abs(value - earlier) for earlier, value in pairwise(values)) / _JUMP_OF_NOISE


def _reward_fell(run: RunFacts, spike: Spike) -> str:
    move = _lasting(curve_of(run, *REWARD), spike.step)
    fallen = move is not None and move.down and move.before - move.after > limit("reward_moves") * reward_span(run)
    return f"the reward went from {move}" if fallen else ""


def _entropy_jumped(run: RunFacts, spike: Spike) -> str:
    move = _lasting(curve_of(run, *ENTROPY), spike.step)
    jumped = move is not None and abs(move.after - move.before) > 0.25 * abs(move.before)
    return f"the entropy went from {move}" if jumped else ""


def _policy_leaps(run: RunFacts, spike: Spike) -> str:
    move = _lasting(curve_of(run, STEP_KL), spike.step) if spike.role == "actor" else None
    if move is None or move.after <= max(limit("step_kl"), limit("spike_factor") * abs(move.before)):
        return ""
    return f"the policy moves by a KL of {move.after:.3g} in a step since, {move.before:.3g} before"


def _stands_still(run: RunFacts, spike: Spike) -> str:
    """AdamW divides by the root of the mean squared gradient, which remembers a spike for a thousand steps."""
    found: list[str] = []
    for name, words in ((STEP_KL, "a KL"), (CLIPPED, "a clip fraction")):
        curve = curve_of(run, name)
        if curve is None or spike.role != "actor":
            continue
        before, after = _far_around(curve, spike.step)
        usual, now = median(before) or 0.0, max(median(after) or 0.0, abs(end_of(curve)))
        if min(len(before), len(after)) < _LASTS or usual <= 0 or now >= 0.15 * usual:
            return ""
        found.append(f"{words} of {usual:.2g} in a step, then {now:.2g}")
    return f"the policy hardly moves since: {found[0]}" if found else ""


def _far_around(curve: Curve, step: int) -> tuple[list[float], list[float]]:
    """Sizes before STEP, and after it once what momentum holds has run out."""
    before = window(curve, curve.steps[0], step - 1).values[-NEARBY:]
    after = window(curve, step + 1, curve.steps[-1]).values[EDGE : EDGE + 2 * NEARBY]
    return [abs(value) for value in before], [abs(value) for value in after]


def _reward_stalls(run: RunFacts, spike: Spike) -> str:
    """It rose up to the spike, and no more after it; healthy rewards stop to rise as well, so only of a huge one."""
    curve = curve_of(run, *REWARD)
    huge = spike.norm >= limit("huge_spike_factor") * spike.usual
    if curve is None or spike.role != "actor" or not huge or solved(run):
        return ""
    before, after = window(curve, spike.step - MEMORY, spike.step - 1), window(curve, spike.step + 1, curve.steps[-1])
    rise, rest = first_last(before), first_last(after)
    if rise is None or rest is None or min(len(before.values), len(after.values)) < NEARBY // 2:
        return ""
    # What so few steps gained would be gained again in as many more, if nothing had happened.
    gained = rise[1] - rise[0]
    least = max(2 * _SIGMAS * _rough_noise(before.values), limit("reward_moves") * reward_span(run))
    if gained <= least or rest[1] > rise[1] or max(after.values) >= rise[1] + gained:
        return ""
    return f"the reward rose from {rise[0]:.3g} to {rise[1]:.3g} before, and is {rest[1]:.3g} at the end"


def _critic_lost(run: RunFacts, spike: Spike) -> str:
    curve = curve_of(run, "critic/vf_explained_var")
    move = _lasting(curve, spike.step) if spike.role == "critic" else None
    lost = move is not None and move.down and move.before - move.after > 0.2
    return f"the critic's explained variance went from {move}" if lost else ""
