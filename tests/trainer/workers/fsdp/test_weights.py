"""Weights that leave the ranks: names, ties, exports, hashes; and where they lie meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from rltrain.core.errors import UserError
from rltrain.workers.fsdp import held
from rltrain.workers.fsdp.weights import check_names
from rltrain.workers.sync.checksum import checksum, combined
from tests.trainer.workers.fsdp import scenes, two_ranks
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.models import SHAPES, random_batch


@pytest.mark.parametrize("shape", SHAPES)
def test_names_and_values_are_those_of_the_checkpoint(models: Path, shape: str) -> None:
    """A tied lm_head is in neither."""
    stored = load_file(models / shape / "model.safetensors")
    with scenes.worker(make_config(models / shape, critic={"enable": False})) as worker:
        manifest = worker.weight_manifest()
        weights = scenes.full(worker)
    assert ("lm_head.weight" in stored) == (shape in ("llama", "qwen2-window"))
    assert set(weights) == set(stored)
    assert all(torch.equal(weights[name], stored[name]) for name in stored)
    assert [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()] == manifest


def test_weights_are_cast_for_the_engine(models: Path) -> None:
    config = make_config(models / "qwen2", critic={"enable": False})
    rollout = config.actor_rollout_ref.rollout.model_copy(update={"dtype": "bfloat16"})
    config = config.model_copy(
        update={"actor_rollout_ref": config.actor_rollout_ref.model_copy(update={"rollout": rollout})}
    )
    stored = load_file(models / "qwen2" / "model.safetensors")
    with scenes.worker(config) as worker:
        sent = scenes.full(worker)
    assert all(torch.equal(sent[name], stored[name].bfloat16()) for name in stored)


def test_two_ranks_send_what_one_would(played: list[dict[str, Any]]) -> None:
    left, right = (rank["resume"]["first"][2] for rank in played)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert left["model.embed_tokens.weight"].shape == (32, 32)


def test_pieces_of_two_ranks_are_the_checksums_of_what_one_would_send(played: list[dict[str, Any]]) -> None:
    sent = played[0]["resume"]["first"][2]
    pieces = combined([rank["resume"]["first"][3] for rank in played])
    assert pieces == {name: checksum(tensor) for name, tensor in sent.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_are_of_what_is_sent_in_the_dtype_of_the_engine(models: Path, shape: str) -> None:
    with scenes.worker(make_config(models / shape, critic={"enable": False})) as worker:
        whole = {name: checksum(tensor.bfloat16()) for name, tensor in scenes.full(worker).items()}
        assert combined([held.pieces(worker._models["actor"].model, torch.bfloat16)]) == whole


@pytest.mark.parametrize("shape", ["qwen2", "llama", "opt-projected"])
def test_an_export_has_the_same_logits_bit_for_bit(models: Path, tmp_path: Path, shape: str) -> None:
    (models / shape / "tokenizer.json").write_text("{}")
    config = make_config(models / shape)
    ids = random_batch(3, seed=1)["input_ids"]
    with scenes.worker(config) as worker:
        scenes.Run(worker, config).step(0)
        trained = scenes.full(worker)
        worker.export(tmp_path / "out")
    (models / shape / "tokenizer.json").unlink()
    source = AutoModelForCausalLM.from_pretrained(models / shape)
    source.load_state_dict(trained, strict=False)
    exported, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        assert torch.equal(exported.eval()(ids).logits, source.eval()(ids).logits)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert (tmp_path / "out" / "generation_config.json").exists()
    before, after = (json.loads((path / "config.json").read_text()) for path in (models / shape, tmp_path / "out"))
    assert after == before, "dropout, which training turns off, is as it was"


def test_two_ranks_export_what_they_have_learnt(models: Path, played: list[dict[str, Any]]) -> None:
    stored = load_file(models / "exported" / "model.safetensors")
    trained = played[0]["resume"]["again"][2]
    assert set(stored) == set(trained)
    assert all(torch.equal(stored[name], trained[name]) for name in stored)


def test_a_large_export_is_cut_into_files(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrain.workers.fsdp.export.FILE_BYTES", 20_000)
    with scenes.worker(make_config(models / "llama", critic={"enable": False})) as worker:
        worker.export(tmp_path)
        trained = scenes.full(worker)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    exported = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, trained[name]) for name, tensor in exported.named_parameters())


def test_an_export_that_cannot_be_written_is_a_user_error(models: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with (
        scenes.worker(make_config(models / "llama", critic={"enable": False})) as worker,
        pytest.raises(UserError, match="export to"),
    ):
        worker.export(tmp_path / "file" / "out")


def test_the_hash_tells_any_change_of_a_weight(models: Path) -> None:
    config = make_config(models / "qwen2")
    with scenes.worker(config) as worker:
        first = worker.parameter_hash()
        worker.log_probs(random_batch(4, seed=1))
        assert worker.parameter_hash() == first, "reading changes nothing"
        scenes.Run(worker, config).step(0)
        assert worker.parameter_hash() != first


def test_the_reference_stays_until_it_is_taken_anew(models: Path) -> None:
    config = make_config(models / "qwen2")
    batch = random_batch(4, seed=1)
    with scenes.worker(config) as worker:
        first = worker.ref_log_probs(batch)["ref_log_probs"]
        scenes.Run(worker, config).step(0)
        assert torch.equal(worker.ref_log_probs(batch)["ref_log_probs"], first)
        worker.end_sft()
        now = worker.ref_log_probs(batch)["ref_log_probs"]
        assert torch.equal(now, worker.log_probs(batch)["old_log_probs"])
        assert not torch.equal(now, first)


def test_supervised_steps_are_cross_entropy_and_learn(models: Path) -> None:
    config = make_config(models / "opt", sft_warmup={"steps": 30, "lr": 3e-3}, critic={"enable": False})
    rows = two_ranks.sft_rows()
    model = AutoModelForCausalLM.from_pretrained(models / "opt").eval()
    losses = [
        torch.nn.functional.cross_entropy(
            model(torch.tensor([ids])).logits[0, :-1], torch.tensor(labels[1:]), reduction="sum"
        ).item()
        for ids, labels in rows
    ]
    count = sum(label != -100 for _, labels in rows for label in labels)
    with scenes.worker(config) as worker:
        steps = [worker.sft_step(rows) for _ in range(30)]
    assert steps[0]["sft/loss"] == pytest.approx(sum(losses) / count, rel=1e-5)
    assert steps[0]["sft/loss_tokens"] == count
    assert steps[0]["sft/lr"] == pytest.approx(3e-4)
    assert steps[-1]["sft/loss"] < 0.3 * steps[0]["sft/loss"]


def test_an_architecture_whose_weights_are_renamed_is_refused() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8, "num_experts": 2}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_moe", **sizes))
    with pytest.raises(UserError, match="renames or merges"):
        check_names(model)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_the_held_out_loss_is_that_of_the_next_supervised_step(models: Path, packed: bool) -> None:
    """It reads packed rows as each alone; without a warm-up in the config the actor's own optimizer learns."""
    dynamic = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 19} if packed else {}
    config = make_config(models / "qwen2", packed=packed, critic={"enable": False}, actor=dynamic)
    rows = two_ranks.sft_rows()
    model = AutoModelForCausalLM.from_pretrained(models / "qwen2").eval()
    with torch.no_grad():
        terms = [
            torch.nn.functional.cross_entropy(
                model(torch.tensor([ids])).logits[0, :-1], torch.tensor(labels[1:]), reduction="sum"
            ).item()
            for ids, labels in rows
        ]
    count = sum(label != -100 for _, labels in rows for label in labels[1:])
    with scenes.worker(config) as worker:
        held_out = worker.sft_loss(rows)
        step = worker.sft_step(rows)
        assert worker.optimizer_steps() == (1, 1)
        after = worker.sft_loss(rows)
    assert held_out == pytest.approx({"loss": sum(terms) / count, "loss_tokens": count}, rel=1e-5)
    assert step["sft/loss"] == pytest.approx(held_out["loss"], rel=1e-6)
    assert step["sft/lr"] == config.actor_rollout_ref.actor.optim.lr
    assert after["loss"] < held_out["loss"]
