"""How like an answer is to its ground truth, measured in ways that need no reward function."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from statistics import median
from typing import NamedTuple

from rlcheck.checks.run.trend import rank_correlation, student_t
from rlcheck.facts.run import SampleRow

_LONGEST = 400
"""Characters; longer texts are not compared letter by letter."""
_MUCH_LONGER = 3
"""Answers that are this many times as long as the ground truth say more than the ground truth."""
_MOST_ROWS = 600
"""Samples of a long run, evenly spread, that are compared."""
_KEPT = 2000
"""Characters of an answer that are kept of a run; of a longer one the end, where the result stands, is not there."""


class Agreement(NamedTuple):
    """Rank correlation of the reward with one measure of likeness, and its Student's t."""

    measure: str
    correlation: float
    t: float
    rows: int


def judged(rows: Sequence[SampleRow]) -> tuple[SampleRow, ...]:
    """Those of ROWS that are whole and have a ground truth to hold them against, in order of steps; 600 at most."""
    whole = (row for row in rows if row.ground_truth.strip() and len(row.response) < _KEPT)
    known = sorted(whole, key=lambda row: row.step)
    stride = max(1, -(-len(known) // _MOST_ROWS))
    return tuple(known[::stride])


def expects_text(rows: Sequence[SampleRow]) -> bool:
    """Whether the ground truth is the answer itself, letter by letter, and not a value to be found somewhere in it.

    Judged by the first third of ROWS: what a policy says later may be anything.
    """
    early = rows[: max(1, len(rows) // 3)]
    shares = [len(row.response.strip()) / len(row.ground_truth.strip()) for row in early]
    longest = max((len(row.ground_truth) for row in early), default=0)
    return bool(shares) and median(shares) <= _MUCH_LONGER and longest <= _LONGEST


def contains(row: SampleRow) -> float:
    """1 where the ground truth is in the answer, not as a part of a longer word or number."""
    return float(re.search(rf"(?<!\w){re.escape(row.ground_truth.strip())}(?!\w)", row.response) is not None)


def in_place(row: SampleRow) -> float:
    """Share of the ground truth's characters that the answer has at the same place.

    What the answer says beyond does not count, so that long answers are not unlike for their length alone.
    """
    said, want = row.response.strip(), row.ground_truth.strip()
    return sum(a == b for a, b in zip(said, want, strict=False)) / len(want)


def overlap(row: SampleRow) -> float:
    """Share of the ground truth's characters that the answer has in the same order."""
    said, want = row.response.strip()[:_LONGEST], row.ground_truth.strip()[:_LONGEST]
    return sum(block.size for block in SequenceMatcher(None, said, want, autojunk=False).get_matching_blocks()) / len(
        want
    )


_MEASURES: dict[str, Callable[[SampleRow], float]] = {
    "holding the ground truth": contains,
    "characters in place": in_place,
    "characters in common": overlap,
}


def agreements(rows: Sequence[SampleRow]) -> tuple[Agreement, ...]:
    """How the reward of ROWS (each with a ground truth) goes with each measure that varies."""
    rewards = [row.reward for row in rows]
    found: list[Agreement] = []
    for name, measure in _MEASURES.items():
        value = rank_correlation([measure(row) for row in rows], rewards)
        if value is not None:
            found.append(Agreement(name, value, student_t(value, len(rows)), len(rows)))
    return tuple(found)


def is_letters(agreement: Agreement) -> bool:
    """Whether it compares letters, which means little where an answer says more than the ground truth."""
    return agreement.measure != "holding the ground truth"
