"""Rank 0 reads the files of weights alone; all ranks have the model that it read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.workers.fsdp import scenes, two_ranks


@pytest.mark.parametrize("shape", two_ranks.READERS)
def test_a_rank_without_files_reads_what_one_rank_with_them_reads(
    models: Path, scorer: Path, played: list[dict[str, Any]], shape: str
) -> None:
    """Bit for bit: tied and projected heads, positions that no file holds, value head, reward model."""
    alone = scenes.read_all(two_ranks.reading(models / shape, scorer))
    assert alone["old_log_probs"].abs().max() > 1
    for rank in played:
        found = rank["one_rank_reads"][shape]
        assert list(found) == list(alone)
        assert [name for name in alone if not torch.equal(found[name], alone[name])] == []


def test_what_rank_0_cannot_read_every_rank_says_alike(played: list[dict[str, Any]]) -> None:
    first, second = (rank["one_rank_is_refused"] for rank in played)
    assert first == second
    assert "refused0/qwen2: cannot be loaded as AutoModelForCausalLM" in first[0]
    assert "refused0/scorer cannot be loaded" in first[1]
    assert not any("\n" in line for line in first)


def test_rank_0_says_what_the_tensors_are(played: list[dict[str, Any]]) -> None:
    first, second = (rank["other_tensors"] for rank in played)
    assert second["weight"].dtype == torch.float64
    assert torch.equal(first["weight"], second["weight"])
    assert first["error"] == second["error"]
    assert "ranks 0 and 1 have other models (weight)" in first["error"]


def test_no_rank_ever_holds_the_whole_model(models: Path, played: list[dict[str, Any]]) -> None:
    size = (models / "large" / "model.safetensors").stat().st_size
    for rank in played:
        # Its shards are half, a layer at a time is a fourteenth, buffers up to a seventh.
        assert 0.3 * size < rank["memory"] < 0.8 * size
