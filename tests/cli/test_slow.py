"""`rlcheck slow`: every format, records, and words that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import rlcheck
from tests.measure.slow import made


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "give RUN"), (("/nowhere",), "there is no such file or folder"), (("/dev/null",), "give a run"),
     (("x", "--facts", "y"), "--facts judges a record"), (("--facts", "/nowhere"), "--facts /nowhere")],
)  # fmt: skip
def test_bad_words_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = rlcheck("slow", *words)
    assert done.code == 2
    assert said in done.error_line


def test_every_format_and_a_record(tmp_path: Path) -> None:
    place = made.verl(tmp_path / "v", gen=80.0, step=115.0, longest=8000.0)
    (place / "metrics.txt").write_text(made.vllm(512, 0))
    record = tmp_path / "record.json"
    done = rlcheck("slow", place, "--gpu", "H200", "--format", "json", "--record", record)
    assert done.code == 0, done.err
    told = json.loads(done.out)["data"]["slow"]
    assert (told["stage"], told["cause"], told["step_s"]) == ("gen", "tail", 115.0)
    assert 4 < told["floor_s"] < 5
    assert "x its floor" in told["said"]
    assert rlcheck("slow", "--facts", record, "--strict").code == 1
    for form in ("text", "markdown", "junit", "sarif"):
        again = rlcheck("slow", "--facts", record, "--format", form)
        assert again.code == 0, form
        assert "SLO003" in again.out, form
