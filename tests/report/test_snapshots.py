"""What a report looks like in each format, in full; `pytest --snapshot-update` after a wanted change."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.report.samples import EMPTY, FORMATS, HEALTHY, REPORT, on_two_nodes, shown
from tests.report.test_text import on_terminal

REPORTS = {"everything": REPORT, "healthy": HEALTHY, "empty": EMPTY, "two nodes": on_two_nodes()}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", REPORTS)
def test_format(name: str, format: str, snapshot: SnapshotAssertion) -> None:
    assert shown(REPORTS[name], format) == snapshot


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_terminal(columns: int, verbose: bool, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_terminal(monkeypatch, columns, verbose=verbose) == snapshot


def test_plain_ascii(snapshot: SnapshotAssertion) -> None:
    assert shown(REPORT, "text", ascii_only=True) == snapshot


def test_verbose_markdown(snapshot: SnapshotAssertion) -> None:
    assert shown(REPORT, "markdown", verbose=True) == snapshot
