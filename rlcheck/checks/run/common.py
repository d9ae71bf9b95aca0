"""What the checks of a run share: its curves, its settings, and the words for where in the run something happened."""

from __future__ import annotations

from typing import Any

from rlcheck.check import Evidence, Verdict, evidence, skip, unknown
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts, SampleRow
from rlcheck.measure.run.look import charted, steps_words, window

NEEDS = ("run",)
"""What every check of a run needs."""


def run_of(facts: Facts) -> RunFacts:
    """The run.

    Raises:
        FactMissingError: none was read.
    """
    return need(facts.run)


def curve_of(run: RunFacts, *names: str) -> Curve | None:
    """The first curve of NAMES that has values; None if there is none."""
    for name in names:
        curve = run.curves.get(name)
        if curve is not None and curve.values:
            return curve
    return None


def samples_of(run: RunFacts) -> tuple[SampleRow, ...]:
    """The answers that the run wrote down; none where it wrote none."""
    return value_or(run.samples, ())


def setting(run: RunFacts, *keys: str) -> Any:
    """The first of KEYS that the run's config has, None if it has none (or null)."""
    return next((run.settings[key] for key in keys if run.settings.get(key) is not None), None)


def num_ranks(run: RunFacts) -> float | None:
    """How many ranks train, where the run says so."""
    per_node = number_setting(run, "trainer.n_gpus_per_node")
    return None if per_node is None else per_node * (number_setting(run, "trainer.nnodes") or 1)


def number_setting(run: RunFacts, *keys: str) -> float | None:
    """The same, where it is a number."""
    value = setting(run, *keys)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def lacking(run: RunFacts, *names: str) -> Verdict:
    """Verdict where none of the metrics NAMES is there: unknown, never a pass."""
    if not run.num_steps:
        return unknown("the run has written no metrics of a step")
    lost = [name for name in names if name in run.curves and not run.curves[name].values]
    if lost:
        return unknown(f"{lost[0]} is no number at any step")
    return unknown(f"the run does not say: {' or '.join(names)} is not among its metrics")


def too_short(curve: Curve, steps: int) -> Verdict:
    """Verdict for a curve that has fewer points than the STEPS that are judged."""
    return skip(f"{len(curve.values)} steps, too few to judge ({steps} are)")


def drawn(run: RunFacts, *names: str, first: int | None = None, last: int | None = None) -> tuple[str, ...]:
    """A line with a small chart for each of NAMES that the run has, from step FIRST to LAST; twins once."""
    lines: list[str] = []
    seen: list[tuple[float, ...]] = []
    for name in names:
        curve = run.curves.get(name)
        if curve is not None and curve.values and curve.values not in seen:
            seen.append(curve.values)
            low, high = first or curve.steps[0], last or curve.steps[-1]
            lines.append(charted(name, window(curve, low, high)))
    return tuple(lines)


def proof(name: str, value: object, first: int, last: int | None = None) -> Evidence:
    """Evidence from the metric NAME over these steps."""
    return evidence(f"run.curves.{name}", value, steps_words(first, first if last is None else last))


def round_up(value: float) -> str:
    """A number as people write it, in an override: no more than three digits that count."""
    return f"{value:.3g}"
