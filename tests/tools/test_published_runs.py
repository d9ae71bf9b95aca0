"""The record of published runs: its labels, where each run is, and no false fail of a healthy one."""

from __future__ import annotations

import re

from tests.tools.published_runs import LABELS, load


def test_each_run_can_be_fetched_again() -> None:
    day, runs = load()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", day)
    assert len({run.id for run in runs}) == len(runs)
    for run in runs:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", run.repo), run.id
        assert re.fullmatch(r"[0-9a-f]{40}", run.commit), run.id
        assert run.path, run.id
        assert run.label in LABELS, run.id
        assert run.reason, run.id


def test_no_healthy_run_fails() -> None:
    healthy = [run for run in load()[1] if run.label == "healthy"]
    assert len(healthy) >= 20
    assert [run.id for run in healthy if run.fails or run.refused] == []
    assert sum(run.group == 2 for run in healthy) >= 15
