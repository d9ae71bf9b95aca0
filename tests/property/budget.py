"""How many cases the property tests try, and with which settings: together at least ten thousand in every run of CI.

The cases are the same in every run, so that nobody's change fails by chance. RLCHECK_EXPLORE=10 tries ten times as
many, new ones each time.
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
    """How many cases one run tries."""
    return sum(CASES.values()) + CASES[PER_PROBE] * (num_probes - 1)


_TIMES = int(os.environ.get("RLCHECK_EXPLORE", "0"))


def cases(name: str) -> settings:
    """The settings of the property test called `name`."""
    return settings(
        max_examples=CASES[name] * (_TIMES or 1),
        derandomize=not _TIMES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
