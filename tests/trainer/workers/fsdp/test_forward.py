"""What the passes read is what transformers' own model says, row by row, without padding or packing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rltrain.workers.fsdp.micro import MicroSize, micro_batches, take
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.models import SHAPES, random_batch

TEMPERATURE = 0.7


def by_hand(path: Path, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies [B, R], each row alone, in float64."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="eager").eval()
    log_probs = torch.zeros(batch["response_mask"].shape, dtype=torch.float64)
    entropys = torch.zeros_like(log_probs)
    for row, (ids, real, response) in enumerate(
        zip(batch["input_ids"], batch["attention_mask"], batch["response_mask"], strict=True)
    ):
        tokens, count = ids[real], int(response.sum())
        with torch.no_grad():
            log_p = torch.log_softmax(model(tokens[None]).logits[0] / TEMPERATURE, dim=-1)[-count - 1 : -1]
        log_probs[row, :count] = log_p.gather(-1, tokens[-count:, None])[:, 0]
        entropys[row, :count] = -(log_p.exp() * log_p).sum(-1)
    return log_probs, entropys


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("shape", SHAPES)
def test_log_probs_and_entropies_are_those_of_each_row_alone(models: Path, shape: str, packed: bool) -> None:
    batch = random_batch(8, seed=1)
    config = make_config(models / shape, packed=packed, critic={"enable": False})
    with scenes.worker(config) as worker:
        found = worker.log_probs(batch)
        reference = worker.ref_log_probs(batch)
    log_probs, entropys = by_hand(models / shape, batch)
    assert (log_probs != 0).sum() == batch["response_mask"].sum()
    torch.testing.assert_close(found["old_log_probs"].double(), log_probs, atol=3e-6, rtol=1e-6)
    torch.testing.assert_close(found["entropys"].double(), entropys, atol=3e-6, rtol=1e-6)
    torch.testing.assert_close(reference["ref_log_probs"], found["old_log_probs"], atol=0, rtol=0)


@pytest.mark.parametrize("shape", ["qwen2", "llama", "opt", "opt-projected"])
def test_packed_and_padded_rows_give_the_same_numbers(models: Path, shape: str) -> None:
    batch = random_batch(8, seed=2)
    read: list[Tensor] = []
    for packed in (True, False):
        with scenes.worker(make_config(models / shape, packed=packed)) as worker:
            read.append(torch.stack([worker.log_probs(batch)["old_log_probs"], worker.values(batch)["values"]]))
    assert read[0].abs().max() > 1
    torch.testing.assert_close(read[0], read[1], atol=1e-6, rtol=1e-6)


def test_a_value_depends_on_what_came_before_its_token_alone(models: Path) -> None:
    batch = random_batch(4, seed=3)
    batch["response_mask"][:] = True
    batch["attention_mask"][:, -10:] = True
    batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    changed = {**batch, "input_ids": batch["input_ids"].clone()}
    changed["input_ids"][:, -6] = 31 - changed["input_ids"][:, -6]  # the response's token 4 of 10
    with scenes.worker(make_config(models / "llama")) as worker:
        before, after = worker.values(batch)["values"], worker.values(changed)["values"]
    torch.testing.assert_close(before[:, :5], after[:, :5], atol=1e-6, rtol=1e-6)
    assert ((before - after)[:, 5:].abs() > 1e-4).all()


def test_dropout_of_the_model_is_off_in_training(models: Path) -> None:
    """OPT's config asks for dropout 0.1: with it the first update would not start from ratio 1."""
    config = make_config(models / "opt", actor={"ppo_mini_batch_size": 4})
    with scenes.worker(config) as worker:
        assert scenes.Run(worker, config).step(0)["actor/ppo_kl"] == pytest.approx(0, abs=1e-7)


def test_the_audit_finds_a_wrong_log_probability(models: Path) -> None:
    batch = random_batch(4, seed=4)
    with scenes.worker(make_config(models / "qwen2")) as worker:
        batch |= worker.log_probs(batch)
        assert worker.recompute_log_probs(batch)["max_abs_diff"] < 2e-6
        batch["old_log_probs"][2, 0] += 0.01
        audit = worker.recompute_log_probs(batch)
    assert audit["max_abs_diff"] == pytest.approx(0.01, abs=1e-5)
    assert audit["num_tokens"] == batch["response_mask"].sum()


def test_half_precision_computes_in_bfloat16_and_keeps_float32_weights(models: Path) -> None:
    half = {"fsdp_config": {"dtype": "bfloat16"}}
    config = make_config(models / "qwen2", actor=half, critic=half)
    with scenes.worker(config) as worker:
        batch = random_batch(8, seed=5)
        found = worker.log_probs(batch)["old_log_probs"]
        metrics = scenes.Run(worker, config).step(0)
        weights = scenes.full(worker)
    exact, _ = by_hand(models / "qwen2", batch)
    gap = (found - exact).abs().max()
    assert 1e-4 < gap < 0.3, "bfloat16 has 8 bits: neither exact nor far off"
    assert metrics["actor/grad_norm"] > 0
    assert found.dtype == torch.float32
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_micro_batches_lose_padding_and_no_token() -> None:
    batch = random_batch(6, seed=6)
    short = take(batch, [int(batch["attention_mask"].sum(1).argmin())])
    assert short["input_ids"].shape[1] == short["attention_mask"].sum()
    assert short["advantages"].shape == short["response_mask"].shape
    rows = [rows for rows, _ in micro_batches(batch, MicroSize(4, None), 3, "cpu")]
    assert rows == [[0, 1, 2, 3], [4, 5], []]
    *_, (_, idle) = micro_batches(batch, MicroSize(4, None), 3, "cpu")
    assert not idle["response_mask"].any()
    assert idle["input_ids"].shape == (1, 2)


def test_more_micro_batches_than_agreed_are_a_fault() -> None:
    with pytest.raises(ValueError, match="do not fit in 1"):
        list(micro_batches(random_batch(6, seed=6), MicroSize(4, None), 1, "cpu"))
