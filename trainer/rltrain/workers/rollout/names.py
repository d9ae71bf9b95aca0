"""From names of a Hugging Face checkpoint to names inside a model of vLLM or SGLang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class EngineName:
    """A parameter of an engine's model, or one of the components that are fused into it (q, k, v in qkv_proj)."""

    module: str
    attribute: str
    component: int = 0
    num_components: int = 1

    @property
    def path(self) -> str:
        """As in `named_parameters`."""
        return f"{self.module}.{self.attribute}"


def engine_name(model: nn.Module, name: str, fused: Mapping[str, Sequence[str]] | None = None) -> EngineName:
    """Where MODEL keeps what a checkpoint calls NAME.

    FUSED tells which layers are made of which; None: the model's own `packed_modules_mapping`, as in vLLM, where
    `hf_to_vllm_mapper` renames the rest. Either may be absent from a model's class.
    """
    model_class: Any = type(model)
    mapper: Any = getattr(model_class, "hf_to_vllm_mapper", None)
    layers: Mapping[str, Sequence[str]] = getattr(model_class, "packed_modules_mapping", {}) if fused is None else fused
    parts = name.split(".")
    component, num_components = 0, 1
    for fused_name, components in layers.items():
        if len(parts) > 1 and len(components) > 1 and parts[-2] in components:
            component, num_components = list(components).index(parts[-2]), len(components)
            parts[-2] = fused_name
            break
    path = ".".join(parts)
    mapped = path if mapper is None else mapper._map_name(path)
    module, _, attribute = str(mapped).rpartition(".")
    return EngineName(module, attribute, component, num_components)
