"""Folders of checkpoints: by transformers' Trainer and rltrain's own store, verl's by the names in its source."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from rltrain.records.checkpoints import CheckpointStore


def verl(place: Path, *steps: int, ranks: int = 2, critic: bool = False) -> Path:
    """Checkpoints of verl's FSDP, and the tracker at the last of STEPS."""
    for step in steps:
        for role in ("actor", *(["critic"] if critic else [])):
            directory = place / f"global_step_{step}" / role
            (directory / "huggingface").mkdir(parents=True, exist_ok=True)
            for rank in range(ranks):
                for kind in ("model", "optim", "extra_state"):
                    torch.save({"w": torch.arange(300)}, directory / f"{kind}_world_size_{ranks}_rank_{rank}.pt")
            (directory / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
        torch.save({"_num_yielded": step}, place / f"global_step_{step}" / "data.pt")
    (place / "latest_checkpointed_iteration.txt").write_text(str(steps[-1]))
    return place


def rltrain(run: Path, *steps: int, total: int = 40) -> Path:
    """Checkpoints by rltrain's own store, with the files of two ranks."""

    def write(directory: Path) -> None:
        actor = directory / "actor"
        actor.mkdir()
        for rank in range(2):
            torch.save({"torch": torch.get_rng_state()}, actor / f"rng_{rank:05d}.pt")
        (actor / "__0_0.distcp").write_bytes(b"x" * 5000)
        roles = {"actor": {"num_steps": 3, "num_updates": 3, "num_skipped": 0, "optimizer": True}}
        (actor / "train_state.json").write_text(json.dumps({"format": 1, "world_size": 2, "roles": roles}))

    for step in steps:
        CheckpointStore(run / "checkpoints", None).save(step, {"step": step, "best": None, "loader": {}}, write)
    (run / "run.json").write_text(json.dumps({"config": {"trainer": {"total_training_steps": total}}}))
    (run / "metrics.jsonl").write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, steps[-1] + 3)))
    return run


def trainer(place: Path) -> Path:
    """Checkpoints 2 and 4 of a run of six steps, which transformers' Trainer wrote."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 1, "num_key_value_heads": 1}  # fmt: skip
    arguments = TrainingArguments(output_dir=str(place), max_steps=6, save_steps=2, report_to=[], use_cpu=True,
                                  per_device_train_batch_size=1, disable_tqdm=True)  # fmt: skip
    rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 8
    Trainer(LlamaForCausalLM(LlamaConfig(**sizes)), arguments, train_dataset=rows).train()  # pyright: ignore
    for file in sorted((place / "checkpoint-6").rglob("*"), reverse=True):
        file.unlink()
    (place / "checkpoint-6").rmdir()
    return place
