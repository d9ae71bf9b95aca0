"""How many cases the property tests try, and with which settings.

The suite tries a fifth of them, the same in every run, so that nobody's change fails by chance. All of them, at least
ten thousand and new ones each time: RLCHECK_EXPLORE=1 .venv/bin/python -m pytest tests/property, a few minutes;
RLCHECK_EXPLORE=10 tries ten times as many. Last tried in full: 2026-11-23, none failed.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PER_PROBE = "fake machines"
CASES = {
    "changed documents": 700,
    "random documents": 200,
    "random sections": 300,
    "arbitrary bytes": 5000,
    "damaged files": 3600,
    "fake machines": 300,
    "fake tools": 150,
}


def total(num_probes: int) -> int:
    """How many cases there are to try."""
    return sum(CASES.values()) + CASES[PER_PROBE] * (num_probes - 1)


_TIMES = int(os.environ.get("RLCHECK_EXPLORE", "0"))
_SHARE = 5


def share(number: int) -> int:
    """How many of NUMBER cases this run tries."""
    return number * _TIMES or max(1, number // _SHARE)


def cases(name: str) -> settings:
    """The settings of the property test called `name`."""
    return settings(
        max_examples=share(CASES[name]),
        derandomize=not _TIMES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
