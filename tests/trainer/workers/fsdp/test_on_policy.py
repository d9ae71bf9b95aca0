"""Where nobody reads old log-probabilities before the update, its own pass gives them, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rltrain.config.schema import RunConfig
from rltrain.controller.on_policy import READERS, update_reads
from rltrain.workers.fsdp.split import actor_minis
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.models import random_batch

ONE_STEP: dict[str, Any] = {"ppo_mini_batch_size": 4}


def one_step(models: Path, **sections: Any) -> RunConfig:
    """One optimizer step an iteration, in two passes."""
    return make_config(models / "qwen2", actor={**ONE_STEP, **sections.pop("actor", {})}, **sections)


@pytest.mark.parametrize(
    ("sections", "reader"),
    [
        ({}, None),
        ({"actor": {"shuffle": True, "policy_loss": {"loss_mode": "gspo"}}}, None),
        ({"actor": {"ppo_mini_batch_size": 2}}, "steps after the first, whose policy has moved"),
        ({"actor": {"ppo_epochs": 2}}, "steps after the first, whose policy has moved"),
        ({"algorithm": {"use_kl_in_reward": True}}, "the KL in the reward"),
        ({"algorithm": {"rollout_correction": {"rollout_is": "token"}}}, "the weights of the rollout correction"),
        ({"algorithm": {"rollout_correction": {"bypass_mode": True}}}, "bypass_mode, which takes the engine's"),
    ],
)
def test_who_reads_them_before_the_update(models: Path, sections: dict[str, Any], reader: str | None) -> None:
    config = one_step(models, **sections)
    assert [name for name, reads in READERS.items() if reads(config)] == ([] if reader is None else [reader])
    assert update_reads(config, 1) == (reader is None)


def test_steps_of_the_critic_alone_have_no_update_that_could_read(models: Path) -> None:
    config = one_step(models, trainer={"critic_warmup": 3, "device": "cpu", "num_cpu_ranks": 1})
    assert [update_reads(config, step) for step in (1, 2, 3)] == [False, False, True]


@pytest.mark.parametrize("entropy_coeff", [0.0, 0.01])
@pytest.mark.parametrize("mode", ["vanilla", "gspo", "cispo"])
def test_an_update_that_reads_is_to_the_bit_one_after_a_pass(models: Path, mode: str, entropy_coeff: float) -> None:
    config = one_step(models, actor={"entropy_coeff": entropy_coeff, "policy_loss": {"loss_mode": mode}})
    batch = random_batch(16, seed=3)
    rng = torch.Generator().manual_seed(4)
    batch["advantages"] = torch.randn(batch["response_mask"].shape, generator=rng) * batch["response_mask"]
    with scenes.worker(config) as worker:
        batch |= worker.ref_log_probs(batch)
        read = worker.log_probs(batch)
        before = worker.update_actor(actor_minis({**batch, **read}, config, 1, 1)[0])
        weights = scenes.full(worker)
    with scenes.worker(config) as worker:
        late, found = worker.update_and_read_actor(actor_minis(batch, config, 1, 1)[0])
        for name, tensor in scenes.full(worker).items():
            assert torch.equal(tensor, weights[name]), name
    assert found.keys() == read.keys()
    for name, values in found.items():
        assert torch.equal(values, read[name]), name
    assert before.pop("actor/log_ratio_before_step") == 0
    entropy = late.pop("actor/entropy_loss")
    assert entropy == before.pop("actor/entropy_loss", entropy)
    assert scenes.timeless(late) == scenes.timeless(before)


def test_rows_without_old_log_probs_are_learnt_from_once(models: Path) -> None:
    config = make_config(models / "qwen2")
    batch = random_batch(16, seed=3)
    batch["advantages"] = torch.zeros(batch["response_mask"].shape)
    with scenes.worker(config) as worker, pytest.raises(ValueError, match="too many values"):
        worker.update_and_read_actor(actor_minis(batch, config, 1, 1)[0])
