"""How many steps the weights that sample are behind, as the run counts it, and how many its config allows."""

from __future__ import annotations

from rlcheck.checks.drift.reading import STALENESS
from rlcheck.checks.run.common import curve_of
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.look import slope

_BOUNDS = ("max_off_policy_threshold", "max_off_policy_steps", "max_staleness_steps", "max_trajectory_age_steps",
           "max_staleness")  # fmt: skip
"""Keys, in several frameworks, by which samples of older weights are asked for; in steps."""


def counted(run: RunFacts) -> tuple[float, float] | None:
    """Staleness as the run counts it: how many steps at the end, and by how many it grows a step. None if never."""
    curve = curve_of(run, STALENESS)
    if curve is None or max(curve.values) <= 0:
        return None
    tail = Curve(steps=curve.steps[-20:], values=curve.values[-20:])
    return curve.values[-1], slope(tail) or 0.0


def allowed(run: RunFacts) -> float | None:
    """By how many steps the config lets samples be behind; None if it does not say."""
    bounds = [value for key, value in run.settings.items() if key.rsplit(".", 1)[-1] in _BOUNDS]
    numbers = [float(value) for value in bounds if isinstance(value, int | float) and not isinstance(value, bool)]
    return max(numbers) if numbers else None


def by_design(run: RunFacts) -> float | None:
    """The steps that samples are behind, where the run counts them and its config allows as many; else None."""
    found, bound = counted(run), allowed(run)
    if found is None or bound is None or found[1] > 0.5 or not 0 < found[0] <= bound:
        return None
    return found[0]
