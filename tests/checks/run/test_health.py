"""Thresholds of a run's health: each has a source and a reason, and each is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlcheck.checks.config.limits import run_limits
from rlcheck.measure.drift.bands import drift
from rlcheck.measure.run.limits import health, limit

CHECKS = Path(__file__).resolve().parents[3] / "rlcheck" / "checks"
CODE = "".join(path.read_text(encoding="utf-8") for path in CHECKS.rglob("*.py"))
NO_LIMIT_THERE = re.compile(r"perf_tuning\.html|notes/cuda\.html|stable/distributed\.html|debug-hangs\.html|/issues/")
"""Pages that say why to look, and name no number."""


@pytest.mark.parametrize("name", sorted(health().numbers))
def test_it_has_a_source_and_is_used(name: str) -> None:
    threshold = health().numbers[name]
    assert re.fullmatch(r"https://[\w.-]+\.[a-z]{2,}/\S+", threshold.source)
    assert len(threshold.why) > 15
    # Shares of stages are looked up by the name of the stage.
    assert f'"{name}"' in CODE or (name.startswith("stage_share_") and '"stage_share_{' in CODE)


def test_a_limit_that_its_source_does_not_name_is_called_ours() -> None:
    there = [*health().numbers.items(), *run_limits().numbers.items(), *drift().numbers.items()]
    cited = [(name, each.why) for name, each in there if NO_LIMIT_THERE.search(each.source)]
    assert len(cited) > 40
    assert [name for name, why in cited if not why.startswith("our choice: ")] == []


def test_what_has_no_name_here_is_no_threshold() -> None:
    with pytest.raises(KeyError):
        limit("whatever")
