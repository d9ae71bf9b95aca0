"""What the loss was really made of: coefficients of entropy and KL, solved for from the numbers that a run logs.

With actor/loss = actor/pg_loss + a * actor/entropy_loss + b * actor/kl_loss, each a mean over the same mini batches,
the steps of a run are equations for a and b. A right bonus has a = -entropy_coeff, a right penalty b = kl_loss_coef.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rlcheck.checks.run.common import number_setting
from rlcheck.checks.run.settings import ENTROPY_COEFF, KL_LOSS_COEF
from rlcheck.facts.run import RunFacts
from rlcheck.measure.run.limits import limit

_LOSS, _POLICY, _ENTROPY, _KL = "actor/loss", "actor/pg_loss", "actor/entropy_loss", "actor/kl_loss"
_MOST_STEPS = 500
_ROUNDING = 3e-7
"""Of float32, in which losses are summed, with a few roundings on top."""


class Terms(NamedTuple):
    """Solved coefficients: `entropy` of actor/entropy_loss, `kl` of actor/kl_loss (None: it is not logged).

    `*_error`: how far each may be off, given how the equations are met.
    """

    first: int
    last: int
    entropy: float | None
    entropy_error: float
    kl: float | None
    kl_error: float


def terms_of(run: RunFacts) -> Terms | None:
    """The coefficients, by least squares; None where the numbers are not logged, or do not meet one such equation."""
    # Some frameworks log the entropy of the update only, which is then filed as the policy's.
    entropies = _ENTROPY if _ENTROPY in run.curves else "actor/entropy"
    names = [name for name in (entropies, _KL) if name in run.curves and any(run.curves[name].values)]
    if not names or _LOSS not in run.curves or _POLICY not in run.curves:
        return None
    parts = _common(run, (_LOSS, _POLICY, *names))
    if len(parts) < len(names) + 1:
        return None
    rest = [row[1] - row[2] for row in parts]
    columns = [[row[3 + place] for row in parts] for place in range(len(names))]
    scale = max(abs(value) for row in parts for value in row[1:3])
    solved = _solve(columns, rest, scale)
    if solved is None:
        return None
    found = dict(zip(names, solved, strict=True))
    entropy, kl = found.get(entropies, (None, 0.0)), found.get(_KL, (None, 0.0))
    return Terms(int(parts[0][0]), int(parts[-1][0]), entropy[0], entropy[1], kl[0], kl[1])


def _common(run: RunFacts, names: tuple[str, ...]) -> list[tuple[float, ...]]:
    """(step, value of each of NAMES) for the steps that all have; of a long run some, evenly spread."""
    curves = [run.curves[name] for name in names]
    first = curves[0]
    if all(curve.steps == first.steps for curve in curves):
        places = range(0, len(first.steps), max(1, len(first.steps) // _MOST_STEPS))
        return [(first.steps[place], *(curve.values[place] for curve in curves)) for place in places]
    tables = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
    steps = [step for step in first.steps if all(step in table for table in tables)]
    return [(step, *(table[step] for table in tables)) for step in steps[:: max(1, len(steps) // _MOST_STEPS)]]


def _solve(columns: list[list[float]], rest: list[float], scale: float) -> list[tuple[float, float]] | None:
    """(coefficient, error) of each column; None where they do not explain REST, or cannot be distinguished."""
    if len(columns) == 1:
        column = columns[0]
        square = sum(x * x for x in column)
        if not 0 < square < math.inf:
            return None
        found = [sum(x * y for x, y in zip(column, rest, strict=True)) / square]
        variances = [1 / square]
    else:
        one, two = columns
        aa, bb, ab = sum(x * x for x in one), sum(x * x for x in two), _dot(one, two)
        area = aa * bb - ab * ab
        if not 1e-9 * aa * bb < area < math.inf:
            return None
        ay, by = _dot(one, rest), _dot(two, rest)
        found = [(ay * bb - by * ab) / area, (by * aa - ay * ab) / area]
        variances = [bb / area, aa / area]
    predicted = [sum(c * column[place] for c, column in zip(found, columns, strict=True)) for place in range(len(rest))]
    left = math.sqrt(sum((y - p) * (y - p) for y, p in zip(rest, predicted, strict=True)) / len(rest))
    size = math.sqrt(sum(y * y for y in rest) / len(rest))
    if not math.isfinite(left + size) or left > limit("loss_terms_residual") * size + _ROUNDING * scale:
        return None
    spread = max(left, _ROUNDING * scale)
    return [(value, 3 * spread * math.sqrt(variance)) for value, variance in zip(found, variances, strict=True)]


def _dot(one: list[float], two: list[float]) -> float:
    return sum(x * y for x, y in zip(one, two, strict=True))


def entropy_sign(run: RunFacts, terms: Terms) -> str:
    """`right`, `wrong`, `none` (not in the loss) or "" (not known)."""
    return (
        "" if terms.entropy is None else _sign(-terms.entropy, terms.entropy_error, number_setting(run, ENTROPY_COEFF))
    )


def kl_sign(run: RunFacts, terms: Terms) -> str:
    """The same of the KL to the reference."""
    return "" if terms.kl is None else _sign(terms.kl, terms.kl_error, number_setting(run, KL_LOSS_COEF))


def _sign(value: float, error: float, asked: float | None) -> str:
    if abs(value) <= error or (asked is not None and abs(value) < 0.01 * abs(asked)):
        # What is too small to be distinguished from rounding may be a small coefficient of the right sign.
        return "none" if asked is not None and error < 0.1 * abs(asked) else ""
    return "right" if value > 0 else "wrong"
