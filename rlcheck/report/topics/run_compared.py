"""Two runs side by side, for a reader: their settings, their first difference, and where both end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from rlcheck.facts.run import Curve, RunFacts
from rlcheck.finding import Exhibit
from rlcheck.measure.run.compare import Comparison, Difference
from rlcheck.measure.run.look import steps_words
from rlcheck.report.topics.run import OUTCOMES, curve_of, ends_of, number, progress, shown_rows
from rlcheck.text import sparkline

_CHART = 13
_SHOWN = 12
_CUT = 26
"""With them the tables fit 80 columns."""


def exhibits(comparison: Comparison, one: RunFacts, other: RunFacts) -> tuple[Exhibit, ...]:
    """The tables of a comparison; A is the first run, B the second."""
    found = (_since(comparison), _settings(comparison), _ends(one, other))
    return tuple(table for table in found if table is not None)


def sentence(comparison: Comparison) -> str:
    """From where on the runs differ."""
    if comparison.steps is None:
        return "the runs have no step in common"
    if not comparison.first:
        return f"every metric is the same, {steps_words(*comparison.steps)} (clocks left out)"
    first = comparison.first[0]
    if comparison.equal_until is None:
        return f"the runs differ from their first common step on (step {first.step})"
    more = f" and {len(comparison.first) - 1} more" if len(comparison.first) > 1 else ""
    return f"the same up to step {comparison.equal_until}; they part at step {first.step}: {first.name}{more}"


def _since(comparison: Comparison) -> Exhibit:
    shown = comparison.apart or comparison.first
    rows = [_difference(d) for d in shown[:_SHOWN]]
    notes: list[str] = []
    if comparison.apart:
        notes.append("smoothed, and further apart than the noise of both; the first step of each metric")
    elif rows and comparison.equal_until is None:
        notes.append("nowhere further apart than their noise; what is shown is the first step")
    if len(shown) > _SHOWN:
        notes.append(f"and {len(shown) - _SHOWN} more metrics")
    for run, names in (("A", comparison.only_one), ("B", comparison.only_other)):
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            notes.append(f"only {run} has {', '.join(names[:4])}{more}")
    columns = ("step", "metric", "A", "B", "apart") if rows else ()
    return Exhibit(title=f"Since when: {sentence(comparison)}", columns=columns, rows=tuple(rows), notes=tuple(notes))


def _difference(found: Difference) -> tuple[str, ...]:
    apart = f"{found.relative:.1%}" if found.relative >= 1e-3 else f"{found.relative:.0e}"
    return str(found.step), found.name, _number(found.one), _number(found.other), apart


def _number(value: float) -> str:
    return number(value) if math.isfinite(value) else "no number"


def _settings(comparison: Comparison) -> Exhibit | None:
    if not comparison.settings:
        return None
    rows = tuple((s.key, _cut(s.one), _cut(s.other)) for s in comparison.settings[: 2 * _SHOWN])
    rest = len(comparison.settings) - len(rows)
    notes = (f"and {rest} more",) if rest else ()
    return Exhibit(title="Settings that differ", columns=("setting", "A", "B"), rows=rows, notes=notes)


def _cut(text: str) -> str:
    return (text if len(text) <= _CUT else text[: _CUT - 1] + "…") or "not set"


def _ends(one: RunFacts, other: RunFacts) -> Exhibit:
    rows: list[tuple[str, ...]] = []
    for row in shown_rows(one) + tuple(row for row in shown_rows(other) if row not in shown_rows(one)):
        curves = curve_of(one, row), curve_of(other, row)
        low, high = _range([curve for curve in curves if curve is not None])
        cells = [(_end(curve), _chart(curve, low, high)) for curve in curves]
        rows.append((row.label, cells[0][0], cells[1][0], cells[0][1], cells[1][1]))
    notes = tuple(
        f"{name}: {', '.join(part for part in (run.source, progress(run), OUTCOMES.get(run.outcome, '')) if part)}"
        for name, run in (("A", one), ("B", other))
    )
    columns = ("at the end", "A", "B", "A over its steps", "B, same scale")
    return Exhibit(title="Both runs", columns=columns, rows=tuple(rows), notes=notes)


def _end(curve: Curve | None) -> str:
    ends = ends_of(curve) if curve is not None else None
    return number(ends[1]) if ends is not None else ""


def _range(curves: Sequence[Curve]) -> tuple[float, float]:
    return min(min(curve.values) for curve in curves), max(max(curve.values) for curve in curves)


def _chart(curve: Curve | None, low: float, high: float) -> str:
    """As `look.chart`, on a scale that is given."""
    if curve is None:
        return ""
    values, count = curve.values, min(_CHART, len(curve.values))
    parts = [median(values[n * len(values) // count : (n + 1) * len(values) // count]) for n in range(count)]
    return sparkline((part - low) / ((high - low) or 1) for part in parts)
