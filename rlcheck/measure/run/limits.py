"""Thresholds of a run's health, read from data/health.json; each number there has its source."""

from __future__ import annotations

from rlcheck.facts.base import Struct
from rlcheck.tables import Threshold, table


class Health(Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    numbers: dict[str, Threshold]


def health() -> Health:
    """Return the table."""
    return table("health", Health)


def limit(name: str) -> float:
    """The threshold of this name.

    Raises:
        KeyError: there is none.
    """
    return health().numbers[name].value
