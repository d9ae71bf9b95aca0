"""Failures of a user's own code and services: nothing is made of them, and their first line is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.reading import diagnosed

LOGS = sorted((Path(__file__).parents[1] / "fixtures" / "unknown_logs").glob("*.log"))


def test_there_are_some() -> None:
    assert len(LOGS) >= 15


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_an_own_failure_is_unknown_and_shown(path: Path) -> None:
    first, _, text = path.read_text(encoding="utf-8").partition("\n")
    answer = diagnosed(text)
    assert [found.id for found in answer.diagnoses] == []
    assert answer.unknown is not None
    assert answer.unknown.evidence[0].text[-1] == first.removeprefix("%% first: ")
