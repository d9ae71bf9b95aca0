"""Every check of the doctor, by family. A check is a pure function of facts: nothing in here touches the machine."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from rlcheck.check import Check

FAMILIES: dict[str, str] = {
    "SYS": "System",
    "ENV": "Python and packages",
    "GPU": "GPUs and driver",
    "NET": "Network",
    "NCL": "NCCL settings",
    "RAY": "Ray",
    "HFC": "Hugging Face cache",
    "CFG": "Run config",
    "DAT": "Data",
    "MEM": "Memory",
    "ROL": "Rollout engine",
    "DRF": "Rollout against training",
    "RUN": "Health of a run",
}


@cache
def family_checks(family: str) -> tuple[Check, ...]:
    """The checks of one family, in order of ID. Families are imported only when asked for."""
    return import_module(f"rlcheck.checks.{family.lower()}").CHECKS


def builtin_checks() -> tuple[Check, ...]:
    """All checks that come with the doctor."""
    return tuple(check for family in FAMILIES for check in family_checks(family))
