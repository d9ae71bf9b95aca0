"""Rows of a toy task: training, held-out validation, demonstrations."""

from __future__ import annotations

import random
from typing import Any

from rltrain.config.schema import ToyConfig
from rltrain.config.schema.data import ToyDemonstrator
from rltrain.core.errors import UserError
from rltrain.toy.task import Split, Task
from rltrain.toy.tasks import DEMONSTRATORS, TASKS

Rows = list[dict[str, Any]]

TRIES_PER_PROMPT = 50


def make_rows(toy: ToyConfig, seed: int) -> tuple[Rows, Rows, Rows, Rows]:
    """Training rows, validation rows with other prompts than those, demonstrations (on training prompts, unless the
    task keeps them apart), and right responses to the validation prompts.

    Raises:
        UserError: there are fewer different prompts than asked for.
    """
    task = TASKS[toy.task]
    train, val, shown = _problems(task, toy, random.Random(f"toy prompts {seed}"))
    rng = random.Random(f"toy demonstrations {seed}")
    demos = [_demonstration(task, toy, shown[i % len(shown)], rng) for i in range(toy.num_demos)]
    held_out = [{**_row(task, problem, "val"), "response": task.work(problem)} for problem in val]
    return [_row(task, one, "train") for one in train], [_row(task, one, "val") for one in val], demos, held_out


def _problems(task: Task, toy: ToyConfig, rng: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Problems to train on, held-out ones, and those of the demonstrations."""
    if task.is_apart:
        train = _distinct(task, toy, rng, "train", {"num_train": toy.num_train})
        val = _distinct(task, toy, rng, "val", {"num_val": toy.num_val})
        return train, val, _distinct(task, toy, rng, "demonstration", {"num_demos": toy.num_demos})
    both = _distinct(task, toy, rng, "train", {"num_train": toy.num_train, "num_val": toy.num_val})
    train = both[toy.num_val :]
    return train, both[: toy.num_val], train


def _distinct(task: Task, toy: ToyConfig, rng: random.Random, split: Split, keys: dict[str, int]) -> list[str]:
    wanted = sum(keys.values())
    found: dict[str, None] = {}
    for _ in range(TRIES_PER_PROMPT * wanted):
        found[task.draw(rng, toy.num_digits, split)] = None
        if len(found) == wanted:
            return list(found)
    raise UserError(
        f"toy.num_digits={toy.num_digits} gives {len(found)} different prompts, "
        f"{' + '.join(f'toy.{key}' for key in keys)} asks for {wanted}; raise num_digits or ask for fewer"
    )


def _row(task: Task, problem: str, split: str) -> dict[str, Any]:
    return {
        "data_source": f"toy/{task.name}",
        "prompt": [{"role": "user", "content": task.prompt(problem)}],
        "reward_model": {"style": "rule", "ground_truth": task.solve(problem)},
        "extra_info": {"split": split},
    }


def _demonstration(task: Task, toy: ToyConfig, problem: str, rng: random.Random) -> dict[str, Any]:
    """The task's own response, or that of a demonstrator drawn by its share of `toy.demo_mixture`."""
    shares = toy.demo_mixture
    right = max(0.0, 1 - sum(shares.values()))
    names: list[ToyDemonstrator] = [*shares, task.name]
    (name,) = rng.choices(names, weights=[*shares.values(), right])
    response = DEMONSTRATORS[name](problem, rng)
    return {**_row(task, problem, "demonstration"), "response": response, "extra_info": {"demonstrator": name}}
