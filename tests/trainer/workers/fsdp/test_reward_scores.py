"""The reward model on the training ranks gives the scores of the same model alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rltrain.rewards.model import RewardModel
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config


def test_scores_are_those_of_the_model_alone(models: Path, scorer: Path) -> None:
    reward = {"enable": True, "model": {"path": str(scorer)}, "micro_batch_size_per_gpu": 2}
    config = make_config(models / "llama", reward_model=reward)
    with scenes.worker(config) as worker:
        scores, num_truncated = worker.reward_scores(scenes.CONVERSATIONS)
        assert worker.reward_scores([]) == ([], 0)
        assert worker.reward_scores(scenes.CONVERSATIONS)[0] == scores
    alone, _ = RewardModel(config.reward_model, device="cpu", dtype=torch.float32).score(scenes.CONVERSATIONS)
    assert scores == pytest.approx(alone, abs=1e-6)
    assert len(set(scores)) == 3
    assert num_truncated == 0
