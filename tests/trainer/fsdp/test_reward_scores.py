"""The reward model on the training ranks gives the scores of the same model alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from tests.trainer.fsdp import scenes
from tests.trainer.fsdp.configs import make_config
from tests.trainer.fsdp.models import ROPE
from trainer.rewards.model import RewardModel, conversation
from trainer.toy.tokenizer import build_tokenizer

CONVERSATIONS = [conversation([{"role": "user", "content": "12"}], digits) for digits in ("2", "21", "4321")]


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scorer")
    tokenizer = build_tokenizer(32)
    torch.manual_seed(1)
    config = AutoConfig.for_model("qwen2", **ROPE, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_scores_are_those_of_the_model_alone(models: Path, scorer: Path) -> None:
    reward = {"enable": True, "model": {"path": str(scorer)}, "micro_batch_size_per_gpu": 2}
    config = make_config(models / "llama", reward_model=reward)
    with scenes.worker(config) as worker:
        scores, num_truncated = worker.reward_scores(CONVERSATIONS)
        assert worker.reward_scores([]) == ([], 0)
        assert worker.reward_scores(CONVERSATIONS)[0] == scores
    alone, _ = RewardModel(config.reward_model, device="cpu", dtype=torch.float32).score(CONVERSATIONS)
    assert scores == pytest.approx(alone, abs=1e-6)
    assert len(set(scores)) == 3
    assert num_truncated == 0
