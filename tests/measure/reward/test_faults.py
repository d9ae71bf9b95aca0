"""Planted faults are named, healthy functions do not fail; each function is really called, in processes of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlcheck.checks import family_checks
from rlcheck.facts.base import FactMissingError, known
from rlcheck.facts.document import Facts
from rlcheck.facts.reward import RewardFacts
from rlcheck.measure.reward import examine_reward
from tests.measure.reward.faults import EIGHT, FAULTS, HEAD, HEALTHY

ALL = bool(os.environ.get("RLCHECK_EXPLORE"))
CHOSEN = ("the gsm8k rule", "the math rule", "TRL", "penalties")
QUESTIONS = {"What is 3*6?": "18", "How many legs do 21 dogs have?": "84", "What is 7+6?": "13", "5*5+100?": "125",
             "1000-9?": "991", "6*6?": "36"}  # fmt: skip


def rows(path: Path) -> Path:
    """Rows in verl's shape, with TRL's column beside it."""
    lines = (
        {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": question}], "solution": truth,
         "reward_model": {"style": "rule", "ground_truth": truth}, "extra_info": {}}
        for question, truth in QUESTIONS.items()
    )  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def statuses(facts: RewardFacts) -> dict[str, str]:
    found: dict[str, str] = {}
    for check in family_checks("RWD"):
        try:
            found[check.id] = check.judge(Facts(reward=known(facts))).status
        except FactMissingError:
            found[check.id] = "skip"
    return found


def examined(directory: Path, code: str, limit_s: float) -> dict[str, str]:
    file = directory / "reward.py"
    file.write_text(HEAD + code)
    facts = examine_reward(file, str(rows(directory / "rows.jsonl")), limit_s=limit_s)
    assert facts.failure is None, facts.failure
    return statuses(facts)


@pytest.mark.parametrize("name", sorted(FAULTS if ALL else EIGHT))
def test_a_planted_fault_is_named(tmp_path: Path, name: str) -> None:
    check, code = FAULTS[name]
    found = examined(tmp_path, code, 3.0)
    assert found[check] in ("fail", "warn"), found
    # What else fails is explained by it, or is the same fault seen from another side.
    assert [id for id, status in found.items() if status == "fail" and id != check] == []


@pytest.mark.parametrize("name", sorted(HEALTHY if ALL else CHOSEN))
def test_a_healthy_function_does_not_fail(tmp_path: Path, name: str) -> None:
    found = examined(tmp_path, HEALTHY[name], 10.0)
    assert "fail" not in found.values(), found
    assert found["RWD007"] == "pass" or name == "TRL, a form"


def test_a_form_of_ones_own_is_given(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text(
        HEAD
        + """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, mark="="):
    return float(solution_str.partition("Result" + mark)[2].strip() == ground_truth)
"""
    )
    data = str(rows(tmp_path / "rows.jsonl"))
    assert statuses(examine_reward(file, data, arguments={"mark": ":"}))["RWD008"] == "unknown"
    found = examine_reward(file, data, arguments={"mark": ":"}, form="Result: {}")
    assert statuses(found)["RWD008"] == "pass"
    assert found.best is not None
    assert found.best.form == "Result: {}"
