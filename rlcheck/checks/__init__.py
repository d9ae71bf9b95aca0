"""Every check of the doctor, by family. A check is a pure function of facts: nothing in here touches the machine."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from rlcheck.check import Check, checks_in
from rlcheck.families import FAMILIES


@cache
def family_checks(family: str) -> tuple[Check, ...]:
    """Return the checks of one family, found in the module of its topic or in those of its package, in order of ID.

    Families are imported only when asked for.
    """
    topic = import_module(f"rlcheck.checks.{FAMILIES[family].topic}")
    names = sorted(module.name for module in pkgutil.iter_modules(getattr(topic, "__path__", ())))
    return checks_in(topic, *(import_module(f"{topic.__name__}.{name}") for name in names), family=family)


def builtin_checks() -> tuple[Check, ...]:
    """Return all checks that come with the doctor."""
    return tuple(check for family in FAMILIES for check in family_checks(family))
