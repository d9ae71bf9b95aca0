"""Parameters that are read from a model's files when their place is ready: no rank ever holds the model whole.

Where each parameter is one tensor of the files, under its own name. What transformers renames, merges, quantises or
keeps in another type it reads itself, whole.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
COMPUTED_ALIKE = ("inv_freq", "embed_scale")
"""How names of buffers end that no file holds and that are the same however a model is made; others may be in files."""


class TensorFiles:
    """The tensors of a directory's safetensors files, by name: shapes at once, values when they are read."""

    def __init__(self, directory: Path) -> None:
        """Open every file once: a file that is cut off raises SafetensorError here, not in the middle of a start."""
        index = directory / INDEX
        names = [WHOLE]
        if index.is_file():
            weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names = sorted(set(weight_map.values()))
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, torch.Size] = {}
        for path in (directory / name for name in names):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # it is no mapping
                    self._files[name] = path
                    shape = cast("list[int]", file.get_slice(name).get_shape())
                    self._shapes[name] = torch.Size(shape)

    def read(self, name: str) -> Tensor:
        """The tensor NAME. Its file is mapped for as long as the tensor lives, not longer."""
        with safe_open(self._files[name], framework="pt") as file:
            return file.get_tensor(name)

    def names_of(self, model: PreTrainedModel) -> dict[nn.Parameter, str] | None:
        """Under which name each parameter of MODEL stands; None where one is missing or has another shape."""
        found: dict[nn.Parameter, str] = {}
        for own, parameter in model.named_parameters(remove_duplicate=False):
            name = self._name(own, model.base_model_prefix)
            if name is not None:
                if self._shapes[name] != parameter.shape:
                    return None
                found.setdefault(parameter, name)
        return found if all(parameter in found for parameter in model.parameters()) else None

    def _name(self, own: str, prefix: str) -> str | None:
        """A model with a head holds its base below PREFIX, the base alone does not."""
        names = (own, f"{prefix}.{own}", own.removeprefix(f"{prefix}."))
        return next((name for name in names if name in self._files), None)


def has_files(directory: Path) -> bool:
    """Whether DIRECTORY holds weights as safetensors."""
    return (directory / INDEX).is_file() or (directory / WHOLE).is_file()


def is_plain(model: PreTrainedModel) -> bool:
    """Whether transformers reads MODEL's files as they are: renames, merges, quantises nothing, keeps no other type."""
    config: PretrainedConfig = model.config
    own_types = model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict
    own_buffers = any(
        buffer.is_floating_point() and not name.endswith(COMPUTED_ALIKE) for name, buffer in model.named_buffers()
    )
    return not (
        own_types
        or own_buffers
        or getattr(config, "quantization_config", None)
        or not type(model).__module__.startswith("transformers.")
        or _conversions(model)
    )


def _conversions(model: PreTrainedModel) -> bool:
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # transformers 4, whose models each have names of their own for this
        return True
    return bool(get_model_conversion_mapping(model, add_legacy=False))


@contextmanager
def parameters_without_memory() -> Generator[None]:
    """Models that are made in the block have parameters on the meta device, and their buffers as ever."""
    register = nn.Module.register_parameter

    def hollow(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:  # else it is tied
            param = nn.Parameter(param.data.to("meta"), param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = hollow
    try:
        yield
    finally:
        nn.Module.register_parameter = register
