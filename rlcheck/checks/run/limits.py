"""Thresholds of a run's health, read from data/health.json; each number there has its source."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from rlcheck.facts.base import Struct


class Threshold(Struct, frozen=True):
    """A number, where it is from, and why it lies there."""

    value: float
    source: str
    why: str


class Health(Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    numbers: dict[str, Threshold]


@cache
def health() -> Health:
    """The table, read once."""
    path = Path(__file__).resolve().parents[2] / "data" / "health.json"
    return msgspec.json.decode(path.read_bytes(), type=Health)


def limit(name: str) -> float:
    """The threshold of this name.

    Raises:
        KeyError: there is none.
    """
    return health().numbers[name].value
