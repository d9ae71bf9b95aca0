"""Two runs side by side: settings that differ, the first step and metric that do, and where both end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from rlcheck.facts.base import Struct
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.look import noise, smooth

RELATIVE = 1e-6
"""Values closer than this times the larger one are equal: a log of six digits may round them."""
_LEAST = 1e-9
_LEAST_ROUNDING = 1e-6
"""Of metrics that are rounding themselves (probabilities of both sides compared), where both runs are healthy."""
SIGMAS = 4.0
"""So many standard deviations of the noise from step to step apart, for `_PERSIST` steps, is more than noise."""
_PERSIST = 6
_NEAR = 12
_SMOOTHED = 2
_POINTS = 400
_EQUAL = 2
"""Runs of fewer equal steps have other seeds or data: the validation before the first step may still be the same."""
_CLOCKS = ("timing_s/", "timing_per_token_ms/", "perf/")
_EXTREMES = ("/min", "/max")
"""They jump from step to step, and say nothing about a level."""
_PATHS = ("trainer.default_local_dir", "trainer.experiment_name", "trainer.resume_from_path", "toy.directory")
_ORDER = ("prompt_length", "response", "num_turns", "critic/score", "reward/", "training/rollout", "rollout_corr",
          "critic/rewards", "critic/values", "critic/returns", "critic/advantages", "train/", "actor/entropy",
          "critic/", "actor/")  # fmt: skip
"""In this order a step computes them: what differs first in a step is the cause of what differs later in it."""


class Setting(NamedTuple):
    """A setting that both runs have otherwise; "" where a run has none of the name."""

    key: str
    one: str
    other: str


class Difference(NamedTuple):
    """A metric at the first step at which it differs. `relative`: of the larger value."""

    step: int
    name: str
    one: float
    other: float
    relative: float


class Comparison(Struct, frozen=True):
    """What `compare` found.

    `steps`: first and last step that both have, None without one. `equal_until`: the last step up to which every
    metric but clocks is the same, None where already the first differs. `first`: the metrics that differ at the first
    such step, in the order in which a step computes them. `apart`: by metric, the first step from which the runs are
    further apart than their noise; only where not even the first `_EQUAL` steps are equal.
    """

    settings: tuple[Setting, ...] = ()
    steps: tuple[int, int] | None = None
    equal_until: int | None = None
    first: tuple[Difference, ...] = ()
    apart: tuple[Difference, ...] = ()
    only_one: tuple[str, ...] = ()
    only_other: tuple[str, ...] = ()


def compare(one: RunFacts, other: RunFacts) -> Comparison:
    """Set two runs side by side."""
    names = sorted(name for name in one.curves if name in other.curves and not name.startswith(_CLOCKS))
    pairs = {name: _paired(one.curves[name], other.curves[name]) for name in names}
    steps = sorted({step for pair in pairs.values() for step in pair.steps})
    found = [d for name in names if (d := _first_difference(name, pairs[name])) is not None]
    begun = min((d.step for d in found), default=None)
    equal = [step for step in steps if begun is None or step < begun]
    return Comparison(
        settings=_settings(one.settings, other.settings),
        steps=(steps[0], steps[-1]) if steps else None,
        equal_until=equal[-1] if equal else None,
        first=tuple(sorted((d for d in found if d.step == begun), key=_place)),
        apart=_apart(pairs) if found and len(equal) < _EQUAL else (),
        only_one=_only(one, other),
        only_other=_only(other, one),
    )


class _Pair(NamedTuple):
    """Two curves at the steps that both have; NaN where a value was not finite."""

    steps: Sequence[int]
    one: Sequence[float]
    other: Sequence[float]


def _paired(one: Curve, other: Curve) -> _Pair:
    if one.steps == other.steps and not one.nonfinite and not other.nonfinite:
        return _Pair(one.steps, one.values, other.values)
    here, there = _points(one), _points(other)
    steps = sorted(here.keys() & there.keys())
    return _Pair(steps, [here[step] for step in steps], [there[step] for step in steps])


def _settings(one: dict[str, Any], other: dict[str, Any]) -> tuple[Setting, ...]:
    if not one or not other:  # of a run without its config nothing is known
        return ()
    keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key) and key not in _PATHS)
    return tuple(Setting(key, _words(one, key), _words(other, key)) for key in keys)


def _words(settings: dict[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else ""


def _only(one: RunFacts, other: RunFacts) -> tuple[str, ...]:
    return tuple(sorted(name for name in one.curves if name not in other.curves))


def _first_difference(name: str, pair: _Pair) -> Difference | None:
    """The first common step at which the values are not the same; a NaN is the same as a NaN."""
    for step, a, b in zip(*pair, strict=True):
        if a != b and not _same(name, a, b):
            return Difference(step, name, a, b, _relative(a, b))
    return None


def _points(curve: Curve) -> dict[int, float]:
    return {**dict(zip(curve.steps, curve.values, strict=True)), **dict.fromkeys(curve.nonfinite, math.nan)}


def _same(name: str, one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    least = _LEAST_ROUNDING if name.startswith(("training/rollout", "rollout_corr")) else _LEAST
    return abs(one - other) <= max(least, RELATIVE * max(abs(one), abs(other)))


def _relative(one: float, other: float) -> float:
    """Of values that differ, how much of the larger one; infinite where one is no number."""
    if math.isnan(one) or math.isnan(other):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def _place(difference: Difference) -> tuple[int, str]:
    known = (number for number, prefix in enumerate(_ORDER) if difference.name.startswith(prefix))
    return next(known, len(_ORDER)), difference.name


def _apart(pairs: Mapping[str, _Pair]) -> tuple[Difference, ...]:
    """Metrics that leave each other, the earliest first."""
    found = (_leaves(name, pair) for name, pair in pairs.items() if not name.endswith(_EXTREMES))
    return tuple(sorted((d for d in found if d is not None), key=lambda d: (d.step, *_place(d))))


def _leaves(name: str, pair: _Pair) -> Difference | None:
    """The first step from which two noisy curves stay apart for `_PERSIST` points by more than their noise."""
    steps, one, other = _coarse(pair)
    noises = noise(one), noise(other)
    if noises[0] is None or noises[1] is None:
        return None
    apart = SIGMAS * math.hypot(noises[0], noises[1])
    ones, others = smooth(one, _SMOOTHED).values, smooth(other, _SMOOTHED).values
    away = 0
    for place, (a, b) in enumerate(zip(ones, others, strict=True)):
        away = away + 1 if abs(a - b) > apart and not _same(name, a, b) else 0
        start = place - _PERSIST + 1
        # The noise may be larger here than elsewhere: it often grows with the value.
        if away >= _PERSIST and abs(ones[start] - others[start]) > SIGMAS * _noise_near(one, other, start):
            return Difference(steps[start], name, ones[start], others[start], _relative(ones[start], others[start]))
    return None


def _noise_near(one: Curve, other: Curve, place: int) -> float:
    """Of the difference of two curves, around a point."""
    low, high = max(0, place - _NEAR), place + _NEAR
    parts = (Curve(steps=curve.steps[low:high], values=curve.values[low:high]) for curve in (one, other))
    return math.hypot(*(noise(part) or 0.0 for part in parts))


def _coarse(pair: _Pair) -> tuple[Sequence[int], Curve, Curve]:
    """Both curves where both are finite; of long ones the medians of at most `_POINTS` parts, by their first step."""
    rows = [row for row in zip(*pair, strict=True) if math.isfinite(row[1] + row[2])]
    parts = min(_POINTS, len(rows))
    cut = [rows[n * len(rows) // parts : (n + 1) * len(rows) // parts] for n in range(parts)]
    steps = tuple(part[0][0] for part in cut)
    one = Curve(steps=steps, values=tuple(median(row[1] for row in part) for part in cut))
    other = Curve(steps=steps, values=tuple(median(row[2] for row in part) for part in cut))
    return steps, one, other
