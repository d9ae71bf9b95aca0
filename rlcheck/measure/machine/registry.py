"""Which probe collects which section of the facts document, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from rlcheck.families import SECTIONS
from rlcheck.measure.machine.context import ProbeContext


class Probe(msgspec.Struct, frozen=True):
    """One section of the facts and the function `module:collect` that collects it.

    The function takes a `ProbeContext` and returns the section's value or a `Fact` of it. `deadline_s` bounds the
    whole probe (`deep_deadline_s` with `--deep`); what it starts must have deadlines of its own below that.
    """

    section: str
    module: str
    deadline_s: float = 10.0
    deep_deadline_s: float = 30.0

    def load(self) -> Callable[[ProbeContext], Any]:
        """Import the probe; done only for the probes that run."""
        return import_module(self.module).collect


PROBES: tuple[Probe, ...] = tuple(
    Probe(section.name, f"rlcheck.measure.machine.{section.name}", section.deadline_s, section.deep_deadline_s)
    for section in SECTIONS.values()
    if section.command == "env"
)
