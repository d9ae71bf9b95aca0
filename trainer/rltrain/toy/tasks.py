"""Tasks on strings of digits whose answer depends on every digit of the prompt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from rltrain.config.schema.data import ToyDemonstrator, ToyTask

DIGITS = "0123456789"
Demonstrator = Callable[[str, random.Random], str]


@dataclass(frozen=True)
class Task:
    """Prompts are the task's name and some digits; one answer is right."""

    name: ToyTask
    solve: Callable[[str], str]
    """From the prompt's digits to the right answer."""

    def draw(self, rng: random.Random, num_digits: int) -> str:
        """Digits of a prompt."""
        return "".join(rng.choices(DIGITS, k=num_digits))

    def prompt(self, digits: str) -> str:
        """The user's message."""
        return f"{self.name} {digits}"


TASKS: dict[ToyTask, Task] = {
    "reverse": Task("reverse", lambda digits: digits[::-1]),
    "copy": Task("copy", lambda digits: digits),
    "sort": Task("sort", lambda digits: "".join(sorted(digits))),
    "rotate": Task("rotate", lambda digits: digits[1:] + digits[:1]),
}

DEMONSTRATORS: dict[ToyDemonstrator, Demonstrator] = {
    "reverse": lambda digits, _: TASKS["reverse"].solve(digits),
    "copy": lambda digits, _: TASKS["copy"].solve(digits),
    "sort": lambda digits, _: TASKS["sort"].solve(digits),
    "rotate": lambda digits, _: TASKS["rotate"].solve(digits),
    "permutation": lambda digits, rng: "".join(rng.sample(digits, len(digits))),
    "noise": lambda digits, rng: "".join(rng.choices(DIGITS, k=len(digits))),
}
