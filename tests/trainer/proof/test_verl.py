"""Capsules from verl's rollout dumps and batches: what they hold is judged, the rest is said to be unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import yaml

from rlcheck.capsules.verl import from_dump, keep, main
from rlcheck.errors import UserError
from rlcheck.facts.step import Link, StepFacts
from rltrain.algos.advantages import compute_advantages
from rltrain.proof.plugin import run
from tests.trainer.proof.plan import tokenizer

CONFIG: dict[str, Any] = {
    "actor_rollout_ref": {"rollout": {"n": 4}},
    "algorithm": {"adv_estimator": "grpo"},
    "custom_reward_function": {"path": "reward.py", "name": "right"},
}
REWARD = """
def right(data_source, solution_str, ground_truth, extra_info=None):
    score = sum(a == b for a, b in zip(solution_str, ground_truth)) / 3
    return {"score": score, "acc": float(score == 1)}
"""


def rows() -> list[dict[str, Any]]:
    """As verl 0.6 and later write them; 0.5 has no `gts`."""
    made: list[dict[str, Any]] = []
    for prompt, truth in (("copy 123", "123"), ("copy 456", "456")):
        for said in ("123", "12", "456", "9"):
            score = sum(a == b for a, b in zip(said, truth, strict=False)) / 3
            made.append({"input": prompt, "output": said, "gts": truth, "score": score, "step": 5,
                         "acc": float(score == 1), "request_id": f"r{len(made)}"})  # fmt: skip
    return made


def links(place: Path, score: Path | None = None) -> dict[str, Link]:
    found = run({"capsules": [str(place)], "checkpoint": None, "score": score and str(score)}, lambda _: None)
    facts = msgspec.convert(found, StepFacts)
    assert facts.failure is None, facts.failure
    return {link.name: link for link in facts.capsules[0].links}


def dumped(place: Path, made: list[dict[str, Any]]) -> dict[str, Link]:
    (place / "5.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made))
    (place / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    (place / "reward.py").write_text(REWARD)
    assert main([str(place / "5.jsonl"), str(place / "step_5"), "--config", str(place / "config.yaml")]) == 0
    return links(place / "step_5", place / "reward.py")


def test_a_dump_is_judged_as_far_as_it_goes(tmp_path: Path) -> None:
    found = dumped(tmp_path, rows())
    assert {name: link.status for name, link in found.items() if link.status != "unknown"} == {
        "prompts": "same", "rewards": "same",
    }  # fmt: skip
    assert "texts and scores alone" in found["advantages"].said
    assert found["rewards"].compared == 8 * 3  # score, acc, the sum


def test_another_score_and_a_missing_answer_differ(tmp_path: Path) -> None:
    made = rows()
    wrong = [{**row, "score": 1 - row["score"]} for row in made]
    link = dumped(tmp_path, wrong)["rewards"]
    assert (link.status, "rewards of 'right'" in link.said) == ("differs", True)
    assert dumped(tmp_path, made[:-1])["prompts"].said == "1 of 2 prompts do not have rollout.n=4 answers"


def test_what_is_no_dump_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "5.jsonl").write_text('{"input": "a"}\n')
    with pytest.raises(UserError, match=r"5\.jsonl:1: no row of verl's rollout dump"):
        from_dump(tmp_path / "5.jsonl", tmp_path / "step_5", CONFIG)
    assert main([str(tmp_path / "none.jsonl"), str(tmp_path / "step_5")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def batch(change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> SimpleNamespace:
    """What a `DataProto` has after `compute_advantage`."""
    words, made = tokenizer(), rows()
    prompts = [words(f"<user>{row['input']}<bot>")["input_ids"] for row in made]
    answers = [[*words(row["output"])["input_ids"], words.eos_token_id] for row in made]
    left, right = max(map(len, prompts)), max(map(len, answers))
    pairs = list(zip(prompts, answers, strict=True))
    ids = torch.tensor([[0] * (left - len(p)) + p + a + [0] * (right - len(a)) for p, a in pairs])
    real = torch.tensor([[0] * (left - len(p)) + [1] * len(p + a) + [0] * (right - len(a)) for p, a in pairs])
    mask = real[:, left:]
    last = (mask.cumsum(-1) == mask.sum(-1, keepdim=True)) & mask.bool()
    texts = [words.decode(answer, skip_special_tokens=True) for answer in answers]
    right_ones = [sum(map(str.__eq__, text, row["gts"])) / 3 for text, row in zip(texts, made, strict=True)]
    scores = torch.tensor(right_ones)[:, None] * last
    groups = torch.tensor([at // 4 for at in range(8)])
    adv, returns = compute_advantages(
        "grpo", token_level_rewards=scores, response_mask=mask.bool(), group_ids=groups, gamma=1.0, lam=1.0,
        norm_adv_by_std_in_grpo=True, values=None, reward_baselines=None,
    )  # fmt: skip
    tensors = {"input_ids": ids, "attention_mask": real, "responses": ids[:, left:], "response_mask": mask,
               "token_level_scores": scores, "token_level_rewards": scores, "advantages": change(adv),
               "returns": change(returns)}  # fmt: skip
    others = {"uid": [f"u{at // 4}" for at in range(8)], "data_source": ["toy"] * 8,
              "reward_model": [{"ground_truth": row["gts"]} for row in made]}  # fmt: skip
    return SimpleNamespace(batch=tensors, non_tensor_batch=others)


def test_a_batch_is_judged_up_to_its_advantages(tmp_path: Path) -> None:
    line = "return sum(map(str.__eq__, solution_str, ground_truth)) / 3\n"
    plain = "def right(solution_str, ground_truth, **_):\n    " + line
    (tmp_path / "reward.py").write_text(plain)
    keep(batch(), tmp_path / "step_5", config=CONFIG, step=5, tokenizer=tokenizer())
    found = links(tmp_path / "step_5", tmp_path / "reward.py")
    judged = {name: link.status for name, link in found.items() if link.status != "unknown"}
    assert judged == {"prompts": "same", "rewards": "same", "advantages": "same"}, found["rewards"]


def test_another_sign_of_advantages_is_named(tmp_path: Path) -> None:
    keep(batch(lambda x: -x), tmp_path / "step_5", config=CONFIG, step=5)
    link = links(tmp_path / "step_5")["advantages"]
    assert link.status == "differs"
    assert "with the opposite sign" in link.causes
