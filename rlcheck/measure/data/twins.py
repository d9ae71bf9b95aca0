"""Rows that occur twice, and training rows that are in the validation data: from digests of 8 bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_PARTITION_ROWS = 1 << 20
"""Digests that are sorted at a time: Python integers take five times the room of an array's."""
_BITS = 64


@dataclass
class Digests:
    """Of one file's lines, 0 for a line without a prompt."""

    split: str
    prompts: array[int] = field(default_factory=lambda: array("Q"))
    alikes: array[int] = field(default_factory=lambda: array("Q"))
    truths: array[int] = field(default_factory=lambda: array("I"))
    verdicts: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class Twin:
    """A line and the earlier one (in the order of files, then lines) that it repeats."""

    file: int
    line: int
    first_file: int
    first_line: int


def repeated(columns: Sequence[array[int]]) -> set[int]:
    """Digests that stand more than once in COLUMNS together."""
    total = sum(len(column) for column in columns)
    num_parts = max(1, -(-total // _PARTITION_ROWS))
    shift = _BITS - max(num_parts - 1, 0).bit_length()
    found: set[int] = set()
    for part in range(1 << (_BITS - shift)):
        mine = sorted([value for column in columns for value in column if value >> shift == part and value])
        found.update(one for one, two in pairwise(mine) if one == two)
    return found


def twins(columns: Sequence[array[int]], wanted: set[int]) -> Iterator[Twin]:
    """Every line that repeats an earlier one, for the digests WANTED."""
    if not wanted:
        return
    first: dict[int, tuple[int, int]] = {}
    for file, column in enumerate(columns):
        for line, value in enumerate(column):
            if value in wanted:
                place = first.setdefault(value, (file, line))
                if place != (file, line):
                    yield Twin(file, line, *place)


def shared(train: Sequence[array[int]], val: Sequence[array[int]]) -> Iterator[Twin]:
    """Training lines whose digest is in VAL; `first_file` counts in VAL."""
    known = {value for column in val for value in column if value}
    common = known.intersection(value for column in train for value in column)
    if not common:
        return
    first: dict[int, tuple[int, int]] = {}
    for file, column in enumerate(val):
        for line, value in enumerate(column):
            if value in common:
                first.setdefault(value, (file, line))
    for file, column in enumerate(train):
        for line, value in enumerate(column):
            if value in common:
                yield Twin(file, line, *first[value])
