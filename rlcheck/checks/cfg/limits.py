"""What is usual and what engines allow, read from data/run_limits.json; each number there has its source."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.facts.base import Struct


class Limit(Struct, frozen=True):
    """A threshold, where it is from, and why it lies there."""

    value: float
    source: str
    why: str


class RunLimits(Struct, frozen=True):
    """The file."""

    numbers: dict[str, Limit]
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


@cache
def run_limits() -> RunLimits:
    """The table, read once."""
    path = Path(__file__).resolve().parents[2] / "data" / "run_limits.json"
    return msgspec.json.decode(path.read_bytes(), type=RunLimits)


def limit(name: str) -> float:
    """The threshold of this name."""
    return run_limits().numbers[name].value


@cache
def native_models() -> frozenset[str]:
    """Model types that transformers loads without code from the model's directory, as of `native_version`."""
    return frozenset(run_limits().native_models.split())
