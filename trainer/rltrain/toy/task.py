"""What a toy task is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rltrain.config.schema.data import ToyTask

DIGITS = "0123456789"
Split = Literal["train", "val", "demonstration"]


@dataclass(frozen=True)
class Task:
    """Problems are digits, prompts the task's name and the problem; one answer is right."""

    name: ToyTask
    solve: Callable[[str], str]
    """From a problem to the right answer."""
    symbols: str = ""
    """Characters of prompts and responses besides digits."""
    is_apart: bool = False
    """Whether demonstrations have problems of their own, rather than those of the training prompts."""

    def draw(self, rng: random.Random, num_digits: int, split: Split) -> str:
        """A problem of SPLIT."""
        return "".join(rng.choices(DIGITS, k=num_digits))

    def prompt(self, problem: str) -> str:
        """The user's message."""
        return f"{self.name} {problem}"

    def work(self, problem: str) -> str:
        """A right response, which ends with the right answer."""
        return self.solve(problem)
