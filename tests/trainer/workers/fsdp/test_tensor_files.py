"""Parameters that stay in files until their place is ready are those that transformers would have read."""

# Transformers is typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from rltrain.workers.fsdp import attention
from rltrain.workers.fsdp.tensor_files import TensorFiles, has_files, is_plain, parameters_without_memory
from tests.every import every
from tests.trainer.workers.fsdp.families import FAMILIES, NOT_TINY, tiny_model
from tests.trainer.workers.fsdp.test_families import PACKED


def values(model: nn.Module, names: dict[nn.Parameter, str], files: TensorFiles) -> dict[str, Tensor]:
    """Every tensor of MODEL by name; what has no memory is read."""
    read = {
        name: files.read(names[parameter]).to(parameter.dtype) if parameter.is_meta else parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    return read | dict(model.named_buffers())


def differences(auto_class: Any, directory: Path) -> list[str] | None:
    """The tensors that differ, read both ways in bfloat16; None where transformers has to read the files itself."""
    whole: PreTrainedModel = auto_class.from_pretrained(directory, dtype=torch.bfloat16)
    with parameters_without_memory():
        hollow: PreTrainedModel = auto_class.from_config(whole.config, dtype=torch.bfloat16)
    files = TensorFiles(directory)
    names = files.names_of(hollow) if is_plain(hollow) else None
    if names is None:
        return None
    assert all(parameter.is_meta for parameter in hollow.parameters())
    wanted = dict(whole.named_parameters(remove_duplicate=False)) | dict(whole.named_buffers())
    found = values(hollow, names, files)
    assert found.keys() == wanted.keys()
    return [name for name, one in wanted.items() if one.dtype != found[name].dtype or not torch.equal(one, found[name])]


@every(FAMILIES)
def test_a_family_is_read_alike_or_left_to_transformers(family: str) -> None:
    if family in (*NOT_TINY, "emu3", "mllama"):  # of the last two only a part is tiny, which is no model of its own
        return
    attention.register()
    directory = Path(tempfile.mkdtemp())
    try:
        tiny_model(family).save_pretrained(directory)
        differ = differences(AutoModelForCausalLM, directory)
        assert differ == [] or (differ is None and family not in PACKED.split())
        if family in ("llama", "qwen2"):
            assert differences(AutoModel, directory) == [], "the base below a head's prefix"
    finally:
        shutil.rmtree(directory)


def test_files_that_do_not_fit_are_left_to_transformers(tmp_path: Path) -> None:
    assert not has_files(tmp_path)
    model = tiny_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert differences(AutoModelForCausalLM, tmp_path) == [], "several files"
    files = TensorFiles(tmp_path)
    model.lm_head = nn.Linear(3, 3)
    assert files.names_of(model) is None, "another shape"
    model.lm_head = nn.Sequential(nn.Linear(3, 3))
    assert files.names_of(model) is None, "no such name"


def test_a_file_that_is_cut_off_is_seen_at_once(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(SafetensorError):
        TensorFiles(tmp_path)
