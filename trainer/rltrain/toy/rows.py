"""Rows of a toy task: training, held-out validation, demonstrations."""

from __future__ import annotations

import random
from typing import Any

from rltrain.config.schema import ToyConfig
from rltrain.config.schema.data import ToyDemonstrator
from rltrain.core.errors import UserError
from rltrain.toy.tasks import DEMONSTRATORS, TASKS, Task

Rows = list[dict[str, Any]]

TRIES_PER_PROMPT = 50


def make_rows(toy: ToyConfig, seed: int) -> tuple[Rows, Rows, Rows, Rows]:
    """Training rows, validation rows with other prompts than those, demonstrations on training prompts, and right
    answers to the validation prompts.

    Raises:
        UserError: there are fewer different prompts than asked for.
    """
    task = TASKS[toy.task]
    prompts = _distinct(task, toy, random.Random(f"toy prompts {seed}"))
    val, train = prompts[: toy.num_val], prompts[toy.num_val :]
    rng = random.Random(f"toy demonstrations {seed}")
    demos = [_demonstration(task, toy, train[i % len(train)], rng) for i in range(toy.num_demos)]
    held_out = [{**_row(task, digits, "val"), "response": task.solve(digits)} for digits in val]
    return [_row(task, d, "train") for d in train], [_row(task, d, "val") for d in val], demos, held_out


def _distinct(task: Task, toy: ToyConfig, rng: random.Random) -> list[str]:
    wanted = toy.num_train + toy.num_val
    found: dict[str, None] = {}
    for _ in range(TRIES_PER_PROMPT * wanted):
        found[task.draw(rng, toy.num_digits)] = None
        if len(found) == wanted:
            return list(found)
    raise UserError(
        f"toy.num_digits={toy.num_digits} gives {len(found)} different prompts, toy.num_train + toy.num_val asks for "
        f"{wanted}; raise num_digits or ask for fewer"
    )


def _row(task: Task, digits: str, split: str) -> dict[str, Any]:
    return {
        "data_source": f"toy/{task.name}",
        "prompt": [{"role": "user", "content": task.prompt(digits)}],
        "reward_model": {"style": "rule", "ground_truth": task.solve(digits)},
        "extra_info": {"split": split},
    }


def _demonstration(task: Task, toy: ToyConfig, digits: str, rng: random.Random) -> dict[str, Any]:
    """The task's own answer, or that of a demonstrator drawn by its share of `toy.demo_mixture`."""
    shares = toy.demo_mixture
    right = max(0.0, 1 - sum(shares.values()))
    names: list[ToyDemonstrator] = [*shares, task.name]
    (name,) = rng.choices(names, weights=[*shares.values(), right])
    response = DEMONSTRATORS[name](digits, rng)
    return {**_row(task, digits, "demonstration"), "response": response, "extra_info": {"demonstrator": name}}
