"""The type of what a step measures."""

from __future__ import annotations

Metrics = dict[str, float]
"""Values by verl's names."""
