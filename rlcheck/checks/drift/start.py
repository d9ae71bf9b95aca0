"""Drift that is there at the first step, when both sides hold the same weights: what it looks like says where from."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from rlcheck.checks.drift.reading import (
    FIRST_TOKEN,
    LOG_CORR,
    MISMATCH,
    PROB_CORR,
    SLOPE,
    Series,
    at_first,
    entropy_shift,
    estimator_ratio,
    is_truncated,
    remembered,
    series,
    temperature_of,
)
from rlcheck.checks.run.common import curve_of
from rlcheck.facts.run import RunFacts
from rlcheck.measure.drift.bands import FLOAT32, number
from rlcheck.measure.run.look import median, value_at

Kind = Literal[
    "none",
    "prompts",
    "positions",
    "misreported",
    "truncated",
    "temperature",
    "weights",
    "part",
    "other",
    "imprecise",
    "unclear",
]
_ONE_LINE, _EXACT_LINE = 0.97, 0.998
"""Correlation of sides that differ by rounding only: float8 included; of a float32 run, in which one side rounds as
bfloat16 does."""
_ALIKE, _UNLIKE = 0.5, 0.3
"""Below the first, not even most weights are common; below the second, not even the model."""


class Start(NamedTuple):
    """`size`: the usual drift of the run, `first` that of its first step, in units of the run's series.

    `ratio`: of the spreads of both sides' log-probabilities, actor over engine; `only_first`: gone after that step.
    """

    kind: Kind
    size: float = 0.0
    first: float = 0.0
    corr: float | None = None
    ratio: float | None = None
    estimators: float | None = None
    only_first: bool = False


@remembered
def start(run: RunFacts) -> Start:
    """What drift at the first step is of. Kind "none": there is none."""
    found = series(run)
    if found is None or found.curve.values[0] <= found.healthy:
        return Start("none")
    values = found.curve.values
    corr = at_first(run, LOG_CORR)
    corr = at_first(run, PROB_CORR) if corr is None else corr
    ratio, estimators = spread_ratio(run), estimator_ratio(run)
    later = median(values[1:])
    only_first = later is not None and later <= found.healthy
    if only_first and values[0] <= number("wrong_factor") * max(found.problem, later or 0.0):
        return Start("none")
    kind = _kind(run, found, corr, ratio, estimators, only_first)
    return Start(kind, median(values) or 0.0, values[0], corr, ratio, estimators, only_first)


def _kind(
    run: RunFacts,
    found: Series,
    corr: float | None,
    ratio: float | None,
    estimators: float | None,
    only_first: bool,
) -> Kind:
    if (at_first(run, MISMATCH) or 0.0) > 0:
        return "prompts"
    if only_first:
        return "weights"
    if is_after_first(run, found):
        return "positions"
    # Rounding may be biased, too, but is small.
    size = max(found.curve.values[0], median(found.curve.values) or 0.0)
    if estimators is not None and size > found.problem:
        if estimators < number("misreported"):
            return "misreported"
        if estimators > number("truncated"):
            return "truncated"
    if (corr is None or corr >= number("min_corr")) and _is_temperature(run, found, corr, ratio):
        return "temperature"
    if corr is not None and corr > _ONE_LINE and is_bent(run, found):
        return "temperature"
    return _rounding_or_else(run, found, corr)


def _rounding_or_else(run: RunFacts, found: Series, corr: float | None) -> Kind:
    """What it is if no convention explains it: rounding up to a size, else other inputs or other weights."""
    exact = found.dtype == FLOAT32
    line = _EXACT_LINE if exact else _ONE_LINE
    usual = max(found.problem, 0.05 if found.is_log else 0.01)
    reach = rounding_reaches(found) if not exact and corr is not None and corr > line else usual
    usual_size = median(found.curve.values) or 0.0
    too_large = found.curve.values[0] > reach or (not exact and usual_size > rounding_reaches(found))
    if not too_large and (corr is None or corr > line):
        return "unclear" if runs_off(run, found) else "imprecise"
    # Nearly one line, and too far apart for rounding: no proof of other tokens or other weights.
    if corr is None or corr > line:
        return "unclear"
    if curve_of(run, MISMATCH) is None:
        return "weights" if corr < _UNLIKE else "other"
    # The run compares prompt tokens itself, and they are equal: only the weights are left.
    return "weights" if corr < _ALIKE else "part"


def is_after_first(run: RunFacts, found: Series) -> bool:
    """The first token of each answer agrees to rounding, and what follows does not: one prompt, weights and head."""
    firsts = curve_of(run, FIRST_TOKEN)
    size = median(found.curve.values) or 0.0
    if firsts is None or not found.is_log or min(found.curve.values[0], size) <= found.problem:
        return False
    least = median(firsts.values) or 0.0
    return least <= found.healthy and least < number("first_token_share") * size


def runs_off(run: RunFacts, found: Series) -> bool:
    """It grows many-fold, or the two sides stop to correlate: rounding does neither."""
    first, usual = found.curve.values[0], median(found.curve.values) or 0.0
    corrs = curve_of(run, LOG_CORR, PROB_CORR)
    lowest = median(sorted(corrs.values)[: max(1, len(corrs.values) // 5)]) if corrs is not None else None
    grown = usual > number("rounding_growth") * first and usual > found.problem
    return grown or (lowest is not None and lowest < number("min_corr"))


def rounding_reaches(found: Series) -> float:
    """What the run's dtypes, or bfloat16 where they are not said, can make at most, in units of the series."""
    return max(found.problem, number("rounding_log_probs" if found.is_log else "rounding_probs"))


def is_bent(run: RunFacts, found: Series) -> bool:
    """At the first step it is more than rounding can make, and one side's distribution is always the flatter one."""
    if found.curve.values[0] <= rounding_reaches(found):
        return False
    shift = entropy_shift(run, found)
    return shift is not None and abs(shift) >= number("entropy_shift")


def spread_ratio(run: RunFacts) -> float | None:
    """Standard deviation of the actor's log-probabilities over that of the engine's, median of the first steps.

    A regression's slope is that ratio times the correlation. Only where both are nearly one line does it say anything.
    """
    slopes, corrs = curve_of(run, SLOPE), curve_of(run, LOG_CORR)
    if slopes is None or corrs is None:
        return None
    pairs = [
        slope / corr for step, slope in zip(slopes.steps[:5], slopes.values[:5], strict=True)
        if (corr := value_at(corrs, step)) is not None and corr > number("min_corr")
    ]  # fmt: skip
    return median(pairs)


def _is_temperature(run: RunFacts, found: Series, corr: float | None, ratio: float | None) -> bool:
    if ratio is not None:
        return ratio > 0 and abs(math.log(ratio)) > number("temperature_ratio")
    # Without a slope: the config divides logits, the two sides are alike, and apart by more than rounding.
    temperature = temperature_of(run)
    bent = temperature is not None and temperature > 0 and abs(math.log(temperature)) > number("temperature_ratio")
    return (bent or is_truncated(run)) and corr is not None and found.curve.values[0] > found.problem
