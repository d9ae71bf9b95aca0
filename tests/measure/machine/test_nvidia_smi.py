"""What nvidia-smi may print."""

from __future__ import annotations

from rlcheck.facts.base import MissingKind
from rlcheck.measure.machine.nvidia_smi import _parse


def test_a_line_without_end_is_no_table() -> None:
    fact = _parse('"' + "x" * 300_000, ["index", "driver_version"], 0)
    assert fact.missing is not None
    assert fact.missing.kind is MissingKind.ERROR
    assert len(fact.missing.reason) < 200
