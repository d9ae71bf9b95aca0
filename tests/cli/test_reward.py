"""`rlcheck reward`: what cannot be judged is said in one line; a record is judged elsewhere, in every format."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rlcheck.facts.document import FactsFile
from tests.checks.reward.cases import CASES, HEALTHY
from tests.conftest import rlcheck
from tests.measure.reward.test_faults import rows

GOOD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str.rpartition("#### ")[2] == ground_truth)
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "give a FILE"), (("/nowhere.py", "--data", "x"), "there is no such file"),
     ((__file__,), "give --data"), ((__file__, "--data", "x", "--form", "Result"), "must stand where the answer goes"),
     ((__file__, "x", "--data", "x"), "an argument of the function is NAME=VALUE"),
     ((__file__, "--facts", "x"), "--facts judges a record")],
)  # fmt: skip
def test_bad_words_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = rlcheck("reward", *words)
    assert done.code == 2
    assert said in done.error_line


@pytest.mark.parametrize(
    ("code", "said"),
    [("def other(x):\n    return 1\n", "has no function 'compute_score'"), ("import nothing_of_that_name\n", "raised"),
     ("def compute_score(text):\n    return 1\n", "cannot be called as"), ("def (", "invalid syntax")],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_a_finding(tmp_path: Path, code: str, said: str) -> None:
    file = tmp_path / "reward.py"
    file.write_text(code)
    done = rlcheck("reward", file, "--data", rows(tmp_path / "rows.jsonl"))
    assert done.code == 1
    assert "RWD001" in done.out
    assert said in " ".join(done.out.split())


def test_a_record_is_judged_as_the_function_was(tmp_path: Path) -> None:
    file, record = tmp_path / "reward.py", tmp_path / "facts.json"
    file.write_text(GOOD)
    words = ("--data", rows(tmp_path / "rows.jsonl"), "--record", record)
    done = rlcheck("reward", file, *words)
    assert done.code == 0, done.out
    assert "right 1, wrong 0" in " ".join(done.out.split())
    assert rlcheck("reward", "--facts", record).code == 0


@pytest.mark.parametrize("style", ["text", "json", "markdown", "junit", "sarif"])
def test_every_format_names_the_fault(tmp_path: Path, style: str) -> None:
    record = tmp_path / "facts.json"
    for facts, code in ((CASES["RWD007"][0], 1), (HEALTHY, 0)):
        record.write_bytes(msgspec.json.encode(FactsFile(nodes=(facts,))))
        done = rlcheck("reward", "--facts", record, "--format", style)
        assert done.code == code
        assert code == 0 or "RWD007" in done.out
