"""Peaks that prime-rl publishes of its trainer (benchmarks/baselines) beside ours: PrimeIntellect-ai/prime-rl@559b447.

Recomputed activations, the default head, one packed sample of full length a pass; GiB that torch reserved on each H200
or H100, CUDA's context left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcheck.measure.config.read import read_run
from rlcheck.measure.memory.asked import gpu_named, profile_of

FULL = [
    (1, "Qwen/Qwen3-0.6B", 16384, 12.53),
    (1, "Qwen/Qwen3-0.6B", 65536, 19.56),
    (8, "Qwen/Qwen3-4B", 16384, 17.10),
    (8, "Qwen/Qwen3-4B", 65536, 36.10),
    (8, "Qwen/Qwen3-30B-A3B", 16384, 74.59),
    (8, "Qwen/Qwen3-30B-A3B", 65536, 105.35),
]
LORA = [
    (1, "Qwen/Qwen3-0.6B", 16384, 5.15),
    (1, "Qwen/Qwen3-4B", 16384, 23.30),
    (1, "Qwen/Qwen3-4B", 65536, 41.99),
    (8, "Qwen/Qwen3-4B", 65536, 28.85),
    (8, "Qwen/Qwen3-30B-A3B", 16384, 31.65),
    (8, "Qwen/Qwen3-30B-A3B", 65536, 63.68),
]


def peak(directory: Path, gpus: int, model: str, length: int, lora: str = "") -> float:
    path = directory / "rl.toml"
    path.write_text(
        f"seq_len = {length}\n[deployment]\nnum_train_gpus = {gpus}\nnum_infer_gpus = 1\ngpus_per_node = {gpus + 1}\n"
        f'[model]\nname = "{model}"\n[trainer.model.ac]\n{lora}'
    )
    gpu = gpu_named("H200", "")
    assert gpu is not None
    memory = profile_of(read_run(str(path), [], look=False, model_shape=model), gpu, 0)
    phases = [phase for phase in memory.phases if phase.name.startswith("actor ")]
    return max(sum(one.num_bytes for one in phase.owners if one.kind != "context") for phase in phases) / (1 << 30)


@pytest.mark.parametrize(("gpus", "model", "length", "gib"), FULL)
def test_full_fine_tuning_is_within_a_tenth(gpus: int, model: str, length: int, gib: float, tmp_path: Path) -> None:
    assert peak(tmp_path, gpus, model, length) == pytest.approx(gib, rel=0.11)


@pytest.mark.parametrize(("gpus", "model", "length", "gib"), LORA)
def test_lora_is_within_three_tenths(gpus: int, model: str, length: int, gib: float, tmp_path: Path) -> None:
    assert peak(tmp_path, gpus, model, length, "[trainer.model.lora]\nrank = 16\n") == pytest.approx(gib, rel=0.3)


def test_a_head_that_is_not_fused_makes_whole_logits(tmp_path: Path) -> None:
    whole = '[trainer.model]\nfused_lm_head_token_chunk_size = "disabled"\n'
    assert peak(tmp_path, 8, "Qwen/Qwen3-4B", 16384, whole) > 2 * peak(tmp_path, 8, "Qwen/Qwen3-4B", 16384)
