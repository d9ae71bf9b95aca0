"""A user's reward function is run where `--score FILE` names it, and nowhere else."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlcheck.facts.capsule import Capsule, CapsuleRow
from rlcheck.facts.step import Link, StepFacts
from rltrain.proof.plugin import run
from tests.conftest import rlcheck
from tests.trainer.proof.make import make
from tests.trainer.proof.plan import Plan

REWARD = """
from pathlib import Path

Path(__file__).with_suffix(".ran").touch()


def graded(data_source, solution_str, ground_truth, extra_info=None, factor=1.0):
    right = sum(a == b for a, b in zip(solution_str.strip(), ground_truth))
    return {"score": factor * right / len(ground_truth), "length": len(solution_str), "words": "not a number"}
"""


def parts(row: CapsuleRow, factor: float = 2.0) -> dict[str, float]:
    right = sum(a == b for a, b in zip(row.text.strip(), row.ground_truth, strict=False))
    return {"custom": factor * right / len(row.ground_truth), "custom/length": float(len(row.text))}


def capsule(place: Path, rules: bool = False, by: float = 0.5, other: float = 2.0) -> Path:
    """A step whose reward is BY times a user's function, which multiplies by OTHER where the config says 2."""
    section = {"path": str(place / "reward.py"), "name": "graded", "weight": 0.5, "reward_kwargs": {"factor": 2.0}}

    def rows(found: list[CapsuleRow]) -> list[CapsuleRow]:
        made: list[CapsuleRow] = []
        for row in found:
            own = {**(row.reward_parts if rules else {}), **parts(row, other)}
            score = by * own["custom"] + (row.score if rules else 0.0)
            made.append(msgspec.structs.replace(row, reward_parts=own, score=score))
        return made

    def head(found: Capsule) -> Capsule:
        model = {**found.config["reward_model"], **({} if rules else {"rules": []})}
        return msgspec.structs.replace(
            found, config={**found.config, "reward_model": model, "custom_reward_function": section}
        )

    def fields(found: dict[str, Any]) -> dict[str, Any]:
        dropped = ("token_level_scores", "token_level_rewards", "advantages", "returns")
        return {name: value for name, value in found.items() if name not in dropped}

    return make(place / "step_1", Plan(prompts=2, hooks={"rows": rows, "head": head, "fields": fields}))


def rewards(place: Path, score: Path | None) -> Link:
    found = msgspec.convert(
        run({"capsules": [str(place)], "checkpoint": None, "score": score and str(score)}, lambda _: None), StepFacts
    )
    assert found.failure is None, found.failure
    return next(link for link in found.capsules[0].links if link.name == "rewards")


def written(place: Path, text: str = REWARD) -> Path:
    file = place / "reward.py"
    file.write_text(text)
    return file


@pytest.mark.parametrize("rules", [False, True])
def test_a_capsule_runs_no_function_and_says_what_would(tmp_path: Path, rules: bool) -> None:
    file = written(tmp_path)  # where the config says that it is
    link = rewards(capsule(tmp_path, rules), None)
    assert link.status == "unknown"
    assert "'graded' of reward.py was not run" in link.said
    assert "--score FILE" in link.said
    assert not file.with_suffix(".ran").exists()


@pytest.mark.parametrize("rules", [False, True])
def test_with_its_file_the_function_is_judged(tmp_path: Path, rules: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = rewards(capsule(tmp_path, rules), written(tmp_path / "elsewhere"))
    assert (link.status, link.said) == ("same", "")
    assert link.compared == 8 * (3 + 2 * rules)  # score, length and the sum; with rules: two parts more


def test_another_score_than_the_function_gives_differs(tmp_path: Path) -> None:
    link = rewards(capsule(tmp_path, other=3.0), written(tmp_path))
    assert link.status == "differs"
    assert "rewards of 'graded'" in link.said


def test_another_weight_differs_without_the_file_too(tmp_path: Path) -> None:
    link = rewards(capsule(tmp_path, by=1.0), None)
    assert link.status == "differs"
    assert "times 2: a weight" in link.causes


LINES = {
    "def graded(**_):\n    raise ValueError('no\\nluck')\n": "reward.py:2 raised ValueError: no luck",
    "def other(**_):\n    return 1\n": "has no function 'graded'; it has other",
    "def graded(:\n": "reward.py:1: invalid syntax",
    "def graded(**_):\n    return 'well'\n": "returned str well, which is no finite number",
    "def graded(**_):\n    return [1.0]\n": "returned a list",
    "def graded(**_):\n    import os; os._exit(3)\n": "its process ended at row 0 with status 3",
    "def graded(solution_str):\n    return 1\n": "TypeError",
    "raise SystemExit(1)\n": "raised SystemExit: 1",
}


@pytest.mark.parametrize("text", LINES)
def test_what_a_function_does_wrong_is_one_line(tmp_path: Path, text: str) -> None:
    link = rewards(capsule(tmp_path), written(tmp_path, text))
    assert link.status == "unknown"
    assert LINES[text] in link.said
    assert "\n" not in link.said


def test_a_function_that_hangs_is_ended(tmp_path: Path) -> None:
    place = capsule(tmp_path)
    head = msgspec.json.decode((place / "capsule.json").read_bytes())
    head["config"]["reward_model"]["timeout_s"] = 1.0
    (place / "capsule.json").write_bytes(msgspec.json.encode(head))
    began = time.monotonic()
    link = rewards(place, written(tmp_path, "def graded(**_):\n    while True: pass\n"))
    assert time.monotonic() - began < 30
    assert (link.status, "row 0 took longer than 1 s" in link.said) == ("unknown", True)


def test_a_function_that_draws_draws_what_the_run_drew(tmp_path: Path) -> None:
    """Seeds are the trainer's: SEED|UID|SAMPLE|TEXT, as `rltrain.rewards.scorer` settles each call."""
    from rltrain.rewards.request import RewardRequest
    from rltrain.rewards.scorer import Scorer
    from rltrain.rewards.spec import CustomSpec, ScorerSpec

    file = written(tmp_path, "import random\n\n\ndef graded(**_):\n    return random.random()\n")
    scorer = Scorer(ScorerSpec(custom=CustomSpec(str(file), "graded", 0.5, {}), seed=5))

    def rows(found: list[CapsuleRow]) -> list[CapsuleRow]:
        made: list[CapsuleRow] = []
        for row in found:
            request = RewardRequest(row.data_source, row.text, row.ground_truth, {}, uid=row.uid, sample=row.sample)
            value = scorer.score(request, lambda _: None).score
            made.append(msgspec.structs.replace(row, reward_parts={"custom": 2 * value}, score=value))
        return made

    section = {"path": str(file), "name": "graded", "weight": 0.5, "reward_kwargs": {}}
    hooks = {
        "rows": rows,
        "head": lambda found: msgspec.structs.replace(
            found, config={**found.config, "reward_model": {"rules": []}, "custom_reward_function": section}
        ),
        "fields": lambda found: {k: v for k, v in found.items() if k != "token_level_scores"},
    }
    link = rewards(make(tmp_path / "step_1", Plan(prompts=2, hooks=hooks)), file)
    assert link.status == "same", link


def test_a_file_that_is_missing_is_one_line(tmp_path: Path) -> None:
    done = rlcheck("step", capsule(tmp_path), "--score", tmp_path / "none.py")
    assert done.code == 2
    assert "none.py: there is no such file" in done.error_line


def test_the_command_hands_its_file_on(tmp_path: Path) -> None:
    done = rlcheck("step", capsule(tmp_path), "--score", written(tmp_path), "--format", "json")
    found = {one["id"]: one["status"] for one in json.loads(done.out)["checks"]}
    assert found["STP011"] == "pass"
