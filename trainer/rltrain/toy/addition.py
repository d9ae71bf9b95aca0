"""Sums of two numbers, worked column by column: `47+85` is `7+5+0=12;4+8+1=13;132`."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from rltrain.toy.task import DIGITS, Split, Task

_SPLITS: tuple[Split, ...] = get_args(Split)
Fault = Literal["carry", "digit"]
"""No carry is ever taken to the next column; one column's digit is wrong."""


def split_of(operand: str) -> Split:
    """The only split whose problems have OPERAND: it depends on nothing else, so no seed or size mixes splits."""
    return _SPLITS[zlib.crc32(operand.encode()) % len(_SPLITS)]


@dataclass(frozen=True)
class Addition(Task):
    """Problems are `a+b`, both of the same number of digits; the response ends with the sum."""

    symbols: str = "+=;"
    is_apart: bool = True

    def draw(self, rng: random.Random, num_digits: int, split: Split) -> str:
        """Two operands of SPLIT, neither of which begins with 0."""
        return "+".join(next(_operands(rng, num_digits, split)) for _ in range(2))

    def prompt(self, problem: str) -> str:
        """The problem alone: its sign says what is asked."""
        return problem

    def work(self, problem: str) -> str:
        """Every column from the right, with the carry that comes in, and the sum."""
        return worked(problem)


def total(problem: str) -> str:
    """The sum that PROBLEM asks for."""
    return str(sum(map(int, problem.split("+"))))


def worked(problem: str, fault: Fault | None = None, rng: random.Random | None = None) -> str:
    """A response to PROBLEM, with FAULT: right in form, and consistent in itself.

    RNG draws where the fault `digit` is.
    """
    left, right = problem.split("+")
    rng = rng or random.Random(0)
    wrong = rng.randrange(len(left)) if fault == "digit" else -1
    carry, steps, answer = 0, list[str](), ""
    for place, (x, y) in enumerate(zip(reversed(left), reversed(right), strict=True)):
        tens, ones = divmod(int(x) + int(y) + carry, 10)
        if place == wrong:
            ones = rng.choice([digit for digit in range(10) if digit != ones])
        steps.append(f"{x}+{y}+{carry}={tens}{ones}")
        answer = f"{ones}{answer}"
        carry = 0 if fault == "carry" else tens
    return ";".join([*steps, f"{carry or ''}{answer}"])


def _operands(rng: random.Random, num_digits: int, split: Split) -> Iterator[str]:
    while True:
        found = rng.choice(DIGITS[1:]) + "".join(rng.choices(DIGITS, k=num_digits - 1))
        if split_of(found) == split:
            yield found
