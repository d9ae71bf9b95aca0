"""The Hugging Face cache."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class HubFacts(Struct, frozen=True):
    """The Hugging Face cache."""
