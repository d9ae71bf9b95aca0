"""GPUs."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class NvidiaFacts(Struct, frozen=True):
    """GPUs."""


class RocmFacts(Struct, frozen=True):
    """GPUs."""
