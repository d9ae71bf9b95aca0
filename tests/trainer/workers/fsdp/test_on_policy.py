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


def test_a_bypass_corrects_alike_however_rows_are_cut(models: Path) -> None:
    """Weights and rejection are made in each pass, of whole rows: micro batches change nothing but rounding."""
    correction = {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "sequence", "rollout_is_threshold": 1.3,
                  "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.9_1.12"}  # fmt: skip
    batch, rng = random_batch(16, seed=3), torch.Generator().manual_seed(4)
    batch["advantages"] = torch.randn(batch["response_mask"].shape, generator=rng) * batch["response_mask"]
    found: list[tuple[dict[str, float], dict[str, torch.Tensor]]] = []
    for micro in (1, 16):
        size = {"ppo_micro_batch_size_per_gpu": micro}
        config = one_step(models, actor=size, algorithm={"rollout_correction": correction})
        with scenes.worker(config) as worker:
            read = worker.log_probs(batch)["old_log_probs"]
            apart = torch.linspace(-0.2, 0.2, len(read))[:, None]
            rows = {**batch, **worker.ref_log_probs(batch), "old_log_probs": read + apart}
            minis = actor_minis(rows, config, 1, 1)[0]
            found.append((worker.update_actor(minis), scenes.full(worker)))
    (fine, weights), (coarse, others) = found
    for name in ("actor/pg_loss", "rollout_corr/rollout_is_mean", "rollout_corr/rollout_rs_masked_fraction"):
        assert fine[name] == pytest.approx(coarse[name], rel=1e-4, abs=1e-6), name
    assert 0 < fine["rollout_corr/rollout_rs_masked_fraction"] < 1
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], rtol=1e-3, atol=1e-6)
