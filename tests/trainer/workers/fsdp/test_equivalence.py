"""However the work is cut, it is the same work: ranks, micro batches, padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.workers.fsdp import scenes, two_ranks
from tests.trainer.workers.fsdp.configs import make_config

Metrics = list[dict[str, float]]

RELATIVE = 1e-5
"""Of losses and gradient norms over 20 steps in float32."""
POLICY_LOSS = 1e-6
"""Absolute: the policy loss has a zero near which nothing is relative."""


def agree(one: Metrics, other: Metrics) -> None:
    assert len(one) == len(other) > 0
    for step, (left, right) in enumerate(zip(one, other, strict=True)):
        for name in ("critic/vf_loss", "critic/grad_norm", "actor/grad_norm"):
            assert left[name] == pytest.approx(right[name], rel=RELATIVE), (step, name)
        for name in ("actor/pg_loss", "actor/ppo_kl"):
            assert left[name] == pytest.approx(right[name], abs=POLICY_LOSS), (step, name)
        assert left["actor/loss"] == pytest.approx(right["actor/loss"], rel=RELATIVE, abs=POLICY_LOSS), step
        for name in ("actor/kl_loss", "actor/entropy_loss", "actor/pg_clipfrac", "critic/vf_clipfrac", "actor/lr"):
            assert left[name] == pytest.approx(right[name], rel=2e-5, abs=2e-6), (step, name)
        assert left["actor/loss_tokens"] == right["actor/loss_tokens"]


def test_twenty_steps_of_training_move_the_policy(single: Metrics) -> None:
    """Without this the agreements below would show nothing."""
    assert single[-1]["actor/kl_loss"] > 0.1
    assert single[-1]["critic/vf_loss"] < 0.9 * single[0]["critic/vf_loss"]
    assert single[0]["actor/optimizer_steps"] == 2


@pytest.mark.row("F44")
def test_two_ranks_agree_with_one(single: Metrics, played: list[dict[str, Any]]) -> None:
    agree(single, played[0]["train_qwen2"])


def test_both_ranks_return_the_same_metrics(played: list[dict[str, Any]]) -> None:
    assert played[0]["train_qwen2"] == played[1]["train_qwen2"]


def test_only_several_ranks_spend_time_on_gradients(single: Metrics, played: list[dict[str, Any]]) -> None:
    assert all(step["timing_s/grad_comm"] == 0 for step in single)
    assert all(0 < step["timing_s/grad_comm"] < 10 for step in played[0]["train_qwen2"])


def test_two_ranks_with_passes_by_tokens_agree_with_one_by_rows(models: Path, played: list[dict[str, Any]]) -> None:
    keys = {"ppo_mini_batch_size": 1}
    config = make_config(models / "opt-projected", actor=keys, critic=keys)
    with scenes.worker(config) as worker:
        agree(scenes.Run(worker, config).steps(0, 4), played[0]["train_opt_by_tokens"])


def test_micro_batches_of_one_agree_with_eight(single: Metrics, models: Path) -> None:
    # Without recomputing activations: many small passes are slow enough.
    quick = {"fsdp_config": {"dtype": "float32", "entropy_from_logits_with_chunking": False}}
    keys = {"enable_gradient_checkpointing": False}
    config = make_config(models / "qwen2", micro=1, actor=quick, critic={"model": keys}, model_keys=keys)
    agree(single, scenes.train(config))


def test_padded_rows_agree_with_packed(single: Metrics, models: Path) -> None:
    agree(single, scenes.train(make_config(models / "qwen2", packed=False)))


@pytest.mark.parametrize("shape", ["llama", "opt"])
def test_padded_rows_agree_with_packed_on_other_architectures(models: Path, shape: str) -> None:
    agree(*(scenes.train(make_config(models / shape, packed=packed)) for packed in (True, False)))


def test_fewer_rows_than_ranks_is_no_harm(played: list[dict[str, Any]], models: Path) -> None:
    assert [result["one_row"]["rows"] for result in played] == [1, 0]
    config = make_config(models / "llama")
    with scenes.worker(config) as worker:
        one = {name: tensor[:1] for name, tensor in scenes.Run(worker, config).experience(0).items()}
        alone = worker.update_actor(scenes.actor_minis(one, config, 0, 1)[0])
    for result in played:
        assert result["one_row"]["audit"]["max_abs_diff"] < 1e-6
        assert result["one_row"]["metrics"]["actor/grad_norm"] == pytest.approx(alone["actor/grad_norm"], rel=RELATIVE)


def test_supervised_steps_on_two_ranks_agree_with_one(played: list[dict[str, Any]], models: Path) -> None:
    config = make_config(models / "llama", sft_warmup={"steps": 2, "lr": 1e-3})
    with scenes.worker(config) as worker:
        alone = [worker.sft_step(two_ranks.sft_rows()) for _ in range(2)]
    for mine, theirs in zip(alone, played[1]["supervised"], strict=True):
        assert mine == pytest.approx(theirs, rel=RELATIVE)


@pytest.mark.parametrize(
    "change",
    [
        {"model_keys": {"enable_gradient_checkpointing": False}},
        {"actor": {"fsdp_config": {"dtype": "float32", "entropy_from_logits_with_chunking": False}}},
        {"actor": {"fsdp_config": {"dtype": "float32", "offload_policy": True}}},
        {"actor": {"fsdp_config": {"dtype": "float32", "reshard_after_forward": False}}},
    ],
    ids=["no gradient checkpointing", "no chunks", "host offload", "no reshard"],
)
def test_what_saves_memory_changes_nothing(single: Metrics, models: Path, change: dict[str, Any]) -> None:
    config = make_config(models / "qwen2", **change)
    with scenes.worker(config) as worker:
        agree(single[:2], scenes.Run(worker, config).steps(0, 2))


def test_chunks_of_a_few_tokens_change_nothing(single: Metrics, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrain.workers.fsdp.forward.CHUNK_TOKENS", 3)
    config = make_config(models / "qwen2")
    with scenes.worker(config) as worker:
        agree(single[:2], scenes.Run(worker, config).steps(0, 2))


def test_epochs_are_passes_over_the_same_mini_batches(single: Metrics, models: Path) -> None:
    config = make_config(models / "qwen2", actor={"ppo_epochs": 2})
    with scenes.worker(config) as worker:
        metrics = scenes.Run(worker, config).step(0)
    assert metrics["actor/optimizer_steps"] == metrics["critic/optimizer_steps"] == 4
    assert metrics["actor/loss_tokens"] == 2 * single[0]["actor/loss_tokens"]
    # Later epochs start where the policy has moved: the ratio is no longer 1.
    assert abs(metrics["actor/ppo_kl"]) > 1.5 * abs(single[0]["actor/ppo_kl"])
