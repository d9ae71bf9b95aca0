"""NCCL."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class NcclFacts(Struct, frozen=True):
    """NCCL."""
