"""Where weights come from: the model's files and checkpoints, read by the controller alone."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from rltrain.controller.origins import model_files, of_checkpoint, of_files
from rltrain.workers.sync.checksum import checksum

WEIGHTS = {"a.weight": torch.randn(7, 9), "a.bias": torch.randn(7), "count": torch.arange(3)}


@pytest.mark.parametrize("elements", [None, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_of_the_numbers_that_are_kept(tmp_path: Path, elements: int | None, dtype: torch.dtype) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    found = of_files("actor", str(tmp_path), dtype, elements)
    for name, tensor in WEIGHTS.items():
        kept = tensor if elements is None or tensor.numel() <= elements else tensor.flatten()[:elements]
        assert found.tensors[name] == checksum(kept.to(dtype) if kept.is_floating_point() else kept)
    data = (tmp_path / "model.safetensors").read_bytes()
    assert found.files == {"model.safetensors": hashlib.sha256(data).hexdigest()}


def test_the_index_names_the_files(tmp_path: Path) -> None:
    for name in ("one", "two", "consolidated"):
        save_file(WEIGHTS, tmp_path / f"{name}.safetensors")
    index = {"weight_map": {"a.weight": "one.safetensors", "a.bias": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [file.name for file in model_files(tmp_path)] == ["one.safetensors", "two.safetensors"]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert "holds no safetensors" in of_files("actor", str(tmp_path), torch.float32, None).missing
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    assert "cannot be read" in of_files("actor", str(tmp_path), torch.float32, None).missing
    assert "cannot be read" in of_checkpoint("actor", tmp_path, torch.float32).missing


def test_a_checkpoint_is_read_by_one_process(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_save({"model": WEIGHTS, "optimizer": {"a.bias": {"exp_avg": torch.ones(7)}}}, checkpoint_id=tmp_path / "c")
    found = of_checkpoint("actor", tmp_path / "c", torch.float32)
    assert found.missing == ""
    assert found.tensors == {name: checksum(tensor) for name, tensor in WEIGHTS.items()}
