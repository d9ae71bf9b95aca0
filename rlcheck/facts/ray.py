"""Ray."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class RayFacts(Struct, frozen=True):
    """Ray."""
