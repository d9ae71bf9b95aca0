"""When drift began in a run that had none at its first step, and how it went on: what distinguishes stale weights.

Weights that the engine no longer takes fall further behind with every step. Weights that come late stay a fixed number
of steps behind. If they come only now and then, drift returns to nothing in between.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from rlcheck.checks.drift.delay import by_design
from rlcheck.checks.drift.reading import K3, RATE, ROLLOUT_PPL, STEP_KL, Series, level, remembered, series
from rlcheck.checks.run.common import curve_of, setting
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.drift.bands import FLOAT32, number
from rlcheck.measure.run.look import median, noise, slope, window

Kind = Literal["frozen", "part", "late", "now and then", "unclear", "none"]
_ENGINE = (ROLLOUT_PPL, "critic/score/mean", "response_length/mean", "critic/rewards/mean")
"""What changes only when the engine's policy does."""
_SAMPLING = ("response_length/mean", "response_length/clip_ratio", "response_length/max", "response/aborted_ratio")
"""What changes at once when the engine samples otherwise: another limit, other tokens that end an answer."""
_BEFORE = 10
"""Steps before the onset that say how much these vary."""
_LEAST = 3
_ENOUGH = 6
_LONG = 12
"""Steps over which a policy that takes weights, however late, shows that it does."""
_OF_A_STEP = 0.1
"""Less than this share of one step's KL is not the drift of a whole policy that is a step behind."""
_ROUNDING = 5e-5
"""And less than this share is rounding: it grows with the size of logits, in runs that blow up by orders."""
_OF_STEPS = 30
"""A delay of n steps makes about 1.5 n times the KL of a step; more than this many times n is no delay."""
_SURER = 1.5
"""Differences of probabilities also grow as a policy grows surer of its tokens, about by this much."""


class Growth(NamedTuple):
    """`onset`: the first step with drift; `ratio`: of the last third's size over the first's; `behind`: by how many
    steps, where that is a fixed number; `last_good`: the last step without drift before it; `ended`: the first without
    drift after it, 0 if there is none. `moved`: the engine's policy changes; None: nothing says. `jumped`: metrics of
    how the engine samples that took another level at the onset: then it may be the sampling that changed there, and not
    the weights that no longer came."""

    kind: Kind
    last_good: int = 0
    onset: int = 0
    ratio: float = 1.0
    behind: int = 0
    moved: bool | None = None
    ended: int = 0
    jumped: tuple[str, ...] = ()


@remembered
def growth(run: RunFacts) -> Growth:
    """How drift came and grew. Kind "none": there is none, or it was there at the first step."""
    found = series(run)
    if found is None or len(found.curve.values) < 2:
        return Growth("none")
    limit = _limit(found)
    place = _onset(found.curve.values, limit)
    if place is None:
        return _for_a_while(found, limit)
    after = found.curve.values[place:]
    steps = found.curve.steps
    last_good, onset = steps[place - 1], steps[place]
    if not _is_of_weights(run, found, onset, after):
        return Growth("none")
    moved = engine_moves(run, onset)
    ratio = _ratio(run, after, onset, steps[-1])
    # Of a delay that the run itself counts and was asked for, no size says that it is another fault.
    of_step = None if by_design(run) is not None else _share_of_step(run, onset)
    kind = _kind(after, limit, ratio if found.is_log else ratio / _SURER, moved, of_step)
    jumped = sampling_jumps(run, onset)
    if kind == "frozen" and jumped:  # weights that stay as they were sample as they did
        kind = "part"
    return Growth(kind, last_good, onset, ratio, _behind(after, limit), moved, jumped=jumped)


def changed_then(grown: Growth) -> str:
    """What changed at the onset besides, and what that may mean."""
    return (
        f"but at that step {' and '.join(grown.jumped[:2])} took another level at once: see first whether the engine "
        "samples otherwise since (limits, stop tokens, what ends an answer)"
    )


def sampling_jumps(run: RunFacts, onset: int) -> tuple[str, ...]:
    """Metrics of how the engine samples whose next values, from step ONSET on, are all beyond those of the steps before
    by more than these vary."""
    return tuple(name for name in _SAMPLING if (curve := run.curves.get(name)) is not None and _jumps(curve, onset))


def _jumps(curve: Curve, onset: int) -> bool:
    before = window(curve, onset - _BEFORE, onset - 1).values
    after = window(curve, onset, onset + _LEAST - 1).values
    if len(before) < _ENOUGH or len(after) < _LEAST:
        return False
    low, high = min(before), max(before)
    room = max(high - low, 0.01 * max(abs(low), abs(high)))
    return min(after) > high + room / 2 or max(after) < low - room / 2


def _for_a_while(found: Series, limit: float) -> Growth:
    """Drift that grew over some steps and was gone at once: no weights came, then they came again."""
    values, steps = found.curve.values, found.curve.steps
    for first, end in _spells(values, limit):
        ratio = values[end - 1] / values[first]
        largest = max(values[first:end])
        if first and ratio >= 1.4 and values[end - 1] >= 0.9 * largest > 0.9 * number("wrong_factor") * limit:
            return Growth("frozen", steps[first - 1], steps[first], ratio, ended=steps[end])
    return Growth("none")


def _spells(values: tuple[float, ...], limit: float) -> list[tuple[int, int]]:
    """Places from which, and up to which, values are above LIMIT; those of `_LEAST` values and more that end."""
    found: list[tuple[int, int]] = []
    first: int | None = None
    for place, value in enumerate(values):
        if value > limit:
            first = place if first is None else first
        elif first is not None:
            found += [(first, place)] if place - first >= _LEAST else []
            first = None
    return found


def _limit(found: Series) -> float:
    """Above it a point has drift. Where a run's own first value is well below the band of its dtype, so does this."""
    return min(found.healthy, max(10 * found.curve.values[0], found.healthy / 20))


def _onset(values: tuple[float, ...], limit: float) -> int | None:
    """The place from which drift is there for good, or comes back again and again. None if it was there at once."""
    above = [value > limit for value in values]
    if above[0]:
        return None
    left, count = sum(above), len(above)
    for place, drifts in enumerate(above):
        if drifts:
            if left >= 0.3 * (count - place) and sum(above[place : place + 4]) >= min(2, count - place):
                return place
            left -= 1
    return None


def _is_of_weights(run: RunFacts, found: Series, onset: int, after: tuple[float, ...]) -> bool:
    """The size is not one that rounding reaches: far above the band, and no tiny share of what a step changes."""
    late = max(median(after[-max(1, len(after) // 3) :]) or 0.0, median(after) or 0.0)
    exact = found.dtype == FLOAT32
    least = found.healthy if exact else max(found.problem / number("wrong_factor"), found.curve.values[0])
    if late < number("wrong_factor") * least:
        return False
    of_step = _share_of_step(run, onset)
    return of_step is None or of_step > (_ROUNDING if exact else _OF_A_STEP)


def _share_of_step(run: RunFacts, onset: int) -> float | None:
    """k3 between engine and actor over the KL of the actor's own steps, later medians; None where one is not known."""
    last = run.last_step or onset
    half = onset + (last - onset) // 2
    late, step = level(run, K3, half, last), step_kl(run, half, last)
    return None if late is None or step is None else late / step


def step_kl(run: RunFacts, first: int, last: int) -> float | None:
    """The median |ppo_kl| of these steps; None where it is not written, or 0 because a step has one update only."""
    curve = run.curves.get(STEP_KL)
    size = None if curve is None else median(abs(value) for value in window(curve, first, last).values)
    return size if size is not None and size > 1e-9 else None


def _ratio(run: RunFacts, after: tuple[float, ...], onset: int, last: int) -> float:
    """Size of the last third over that of the first third, in units of how far the actor's steps go there: by their KL,
    or where that is not known by the learning rate, to which Adam's steps are proportional."""
    third = max(1, len(after) // 3)
    early, late = median(after[:third]) or 0.0, median(after[-third:]) or 0.0
    if early <= 0:
        return 1.0
    span = (last - onset) // 3
    if span < _LEAST:
        return late / early
    before, behind = step_kl(run, onset, onset + span), step_kl(run, last - span, last)
    if before and behind:
        return late / early / min(2.0, max(0.5, math.sqrt(behind / before)))
    before, behind = level(run, RATE, onset, onset + span), level(run, RATE, last - span, last)
    faster = behind / before if before and behind else 1.0
    return late / early / min(2.0, max(1 / 3, faster))


def _kind(after: tuple[float, ...], limit: float, ratio: float, moved: bool | None, of_step: float | None) -> Kind:
    if len(after) < _LEAST:
        return "unclear"
    if _returns(after, limit):
        return "now and then"
    least = number("growth") if len(after) >= _ENOUGH else 1.4
    if ratio >= least or (ratio >= 0.8 * least and _rises_late(after)):
        return "frozen" if moved is False else "part"
    if moved is False and len(after) >= _LONG and ratio >= 0.8:
        return "frozen"
    if of_step is not None and not _OF_A_STEP <= of_step <= _OF_STEPS * _behind(after, limit):
        return "part"
    return "late"


def _returns(after: tuple[float, ...], limit: float) -> bool:
    """Drift is gone at several steps in between, at least one in eight."""
    gone = [place for place, value in enumerate(after) if value <= limit]
    return len(gone) >= 3 and len(gone) >= len(after) / 8 and gone[-1] - gone[0] >= len(after) / 3


def _rises_late(after: tuple[float, ...]) -> bool:
    """It takes eight steps and more to reach two thirds of its height; a fixed delay is reached in as many steps."""
    top = sorted(after)[int(0.9 * (len(after) - 1))]
    return len(after) >= _ENOUGH and next(place for place, value in enumerate(after) if value >= top * 2 / 3) >= 8


def _behind(after: tuple[float, ...], limit: float) -> int:
    """By how many steps the engine is behind: how long drift rises, or how often it is gone."""
    gone = [place for place, value in enumerate(after) if value <= limit]
    if len(gone) >= 3:
        return round((gone[-1] - gone[0]) / (len(gone) - 1))
    head = after[:8]
    return next(place for place, value in enumerate(head, start=1) if value >= 0.9 * max(head))


def engine_moves(run: RunFacts, first: int) -> bool | None:
    """Something that only the engine's policy changes has a trend, or another value at validation, from FIRST on.

    None: the run has no such metric.
    """
    curves = [curve for name in _ENGINE if (curve := curve_of(run, name)) is not None]
    if not curves:
        return None
    return any(_has_trend(curve, first) for curve in curves) or _validation_moves(run, first)


def _has_trend(curve: Curve, first: int) -> bool:
    """A trend from step FIRST on that is three times as large as the curve's noise would make in so many points."""
    tail = window(curve, first, curve.steps[-1])
    if len(tail.values) < _ENOUGH:
        return False
    jitter, per_step = noise(curve), slope(tail)
    if jitter is None or per_step is None:
        return False
    change = abs(per_step) * (tail.steps[-1] - tail.steps[0])
    floor = 0.01 * abs(median(tail.values) or 0.0)
    return change > max(3 * jitter * math.sqrt(12 / len(tail.values)), floor)


def _validation_moves(run: RunFacts, first: int) -> bool:
    """Greedy validation gave different results; the same weights answer the same questions alike."""
    if setting(run, "actor_rollout_ref.rollout.val_kwargs.do_sample"):
        return False
    for name, curve in run.curves.items():
        if name.startswith("val-core/") or name == "val/reward/mean":
            values = window(curve, first, run.last_step or curve.steps[-1]).values
            if len(values) >= 2 and max(values) - min(values) > 0.03 * max(map(abs, values)):
                return True
    return False
