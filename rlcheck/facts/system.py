"""System."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class SystemFacts(Struct, frozen=True):
    """System."""
