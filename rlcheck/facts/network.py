"""Network."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class NetworkFacts(Struct, frozen=True):
    """Network."""
