"""Two of the slownesses that tests/bench/bench_slow.py plants: does `rlcheck slow` name them, and what they cost?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import bench_slow

pytestmark = pytest.mark.long


@pytest.mark.parametrize("fault", ["data", "reward"])
@pytest.mark.timeout(600)
def test_a_planted_slowness_is_named(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_slow, "STEPS", 6)
    found = bench_slow.CASES[fault](tmp_path)
    assert bench_slow.is_right(found), found
