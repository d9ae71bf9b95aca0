"""`rltrain export`: the trained model in the hands of transformers, which knows nothing of this trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainer.end_to_end.exported import computes_what_the_actor_did
from tests.trainer.end_to_end.runs import Run, column, rltrain

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def exported(toy_ppo: Run) -> Path:
    directory = toy_ppo.directory.with_name("exported")
    done = rltrain(directory, "export", toy_ppo.checkpoint(toy_ppo.steps[-1]["step"]), directory).succeeded()
    assert str(directory) in done.out
    return directory


@pytest.mark.row("F65")
def test_the_exported_model_has_the_actors_logits(toy_ppo: Run, exported: Path, tmp_path: Path) -> None:
    computes_what_the_actor_did(toy_ppo, toy_ppo.steps[-1]["step"], exported, tmp_path)


@pytest.mark.row("F65")
def test_transformers_alone_scores_what_the_last_validation_did(toy_ppo: Run, exported: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(exported)
    tokenizer: Any = AutoTokenizer.from_pretrained(exported)
    lines = (toy_ppo.directory / "toy" / "val.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    prompts = [tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True) for row in rows]
    encoded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    with torch.no_grad():
        out = model.generate(**encoded, do_sample=False, max_new_tokens=6)
    answers = tokenizer.batch_decode(out[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    rewards = [_share(answer, row["reward_model"]["ground_truth"]) for answer, row in zip(answers, rows, strict=True)]
    last = column(toy_ppo.steps, "val/reward/mean")[-1]
    # Greedy ties may fall otherwise in another engine, for a prompt or two.
    assert sum(rewards) / len(rewards) == pytest.approx(last, abs=2 / len(rows))


def _share(said: str, wanted: str) -> float:
    """The reward, written anew: the share of positions that are right."""
    right = sum(one == other for one, other in zip(said, wanted, strict=False))
    return right / max(len(said), len(wanted))
