"""What headlines are put together from."""

from __future__ import annotations

from typing import Any

from rlcheck.facts.base import Fact, Missing, MissingKind, why_missing


def why(fact: Fact[Any]) -> str:
    """Return why a fact has no value: what is not there, or what kept it from being read."""
    reason = why_missing(fact) or Missing(kind=MissingKind.ERROR, reason="")
    return reason.reason if reason.kind is MissingKind.ABSENT else f"could not look: {reason.reason}"


def joined(*parts: str) -> str:
    """Return the parts that say something, separated by commas."""
    return ", ".join(part for part in parts if part)
