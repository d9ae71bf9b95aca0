"""Tasks whose answer depends on every digit of the prompt, and who answers them in demonstrations."""

from __future__ import annotations

import random
from collections.abc import Callable

from rltrain.config.schema.data import ToyDemonstrator, ToyTask
from rltrain.toy.addition import Addition, total, worked
from rltrain.toy.task import DIGITS, Task

Demonstrator = Callable[[str, random.Random], str]

TASKS: dict[ToyTask, Task] = {
    "reverse": Task("reverse", lambda digits: digits[::-1]),
    "copy": Task("copy", lambda digits: digits),
    "sort": Task("sort", lambda digits: "".join(sorted(digits))),
    "rotate": Task("rotate", lambda digits: digits[1:] + digits[:1]),
    "add": Addition("add", total),
}
NAMES = tuple(name for name, task in TASKS.items() if not task.symbols)
"""Of the tasks that prompts name."""

DEMONSTRATORS: dict[ToyDemonstrator, Demonstrator] = {
    "reverse": lambda digits, _: TASKS["reverse"].solve(digits),
    "copy": lambda digits, _: TASKS["copy"].solve(digits),
    "sort": lambda digits, _: TASKS["sort"].solve(digits),
    "rotate": lambda digits, _: TASKS["rotate"].solve(digits),
    "permutation": lambda digits, rng: "".join(rng.sample(digits, len(digits))),
    "noise": lambda digits, rng: "".join(rng.choices(DIGITS, k=len(digits))),
    "add": lambda problem, _: worked(problem),
    "carryless": lambda problem, _: worked(problem, "carry"),
    "slip": lambda problem, rng: worked(problem, "digit", rng),
}
