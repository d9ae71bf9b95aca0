"""What is usual and what engines allow, read from data/run_limits.json; each number there has its source."""

from __future__ import annotations

from functools import cache
from typing import Any

from rlcheck.facts.base import Struct
from rlcheck.tables import Threshold, table


class RunLimits(Struct, frozen=True):
    """The file."""

    numbers: dict[str, Threshold]
    lora_ranks: tuple[int, ...]
    dtypes: tuple[str, ...]
    end_of_turn: tuple[str, ...]
    stretched_rope: tuple[str, ...]
    unscaled_rope: tuple[str, ...]
    loggers: dict[str, tuple[str, ...]]
    native_version: str
    native_models: str
    lists: dict[str, Any] = {}
    """Sources of the lists above."""


def run_limits() -> RunLimits:
    """Return the table."""
    return table("run_limits", RunLimits)


def limit(name: str) -> float:
    """The threshold of this name."""
    return run_limits().numbers[name].value


@cache
def native_models() -> frozenset[str]:
    """Model types that transformers loads without code from the model's directory, as of `native_version`."""
    return frozenset(run_limits().native_models.split())
