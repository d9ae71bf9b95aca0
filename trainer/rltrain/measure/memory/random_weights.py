"""Random weights, made where they are needed: no file is read, and no process ever holds a whole model.

What a pass computes with them means nothing; what it needs in memory is what it needs with any other weights.
"""

# Torch, transformers and peft are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingImports=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rltrain.config.schema import ModelConfig
from rltrain.core.errors import UserError
from rltrain.workers.fsdp.optim import local

_STD = 0.02


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (arXiv:2106.09685) beside the linear layers; everything else is frozen."""

    rank: int
    alpha: float
    target_modules: str | tuple[str, ...]


class RandomWeights:
    """See `rltrain.workers.fsdp.build.Weights`. LORA: adapters to train in place of the policy's weights."""

    def __init__(self, lora: Lora | None = None) -> None:
        self._lora = lora

    def load(self, auto_class: Any, model: ModelConfig, keywords: dict[str, Any]) -> PreTrainedModel:
        """Shapes without memory."""
        with torch.device("meta"):
            made = auto_class.from_config(**keywords)
        if self._lora is not None and auto_class.__name__ == "AutoModelForCausalLM":
            _add_adapters(made, self._lora)
        return made

    def check(self, model: PreTrainedModel) -> None:
        """Nothing: no engine gets these."""

    def place_parameters(self, module: nn.Module, device: torch.device) -> None:
        """Normally distributed numbers on DEVICE; what is tied stays tied."""
        new: dict[nn.Parameter, nn.Parameter] = {}
        for owner in module.modules():
            for name, old in list(owner.named_parameters(recurse=False, remove_duplicate=False)):
                if local(old) is not old:  # sharded already
                    continue
                if old not in new:
                    made = torch.empty(old.shape, dtype=old.dtype, device=device).normal_(std=_STD)
                    new[old] = nn.Parameter(made, old.requires_grad)
                setattr(owner, name, new[old])

    def place_buffers(self, module: nn.Module, device: torch.device) -> None:
        """Zeros on DEVICE: rotary embeddings that do not turn."""
        for owner in module.modules():
            for name, old in list(owner.named_buffers(recurse=False)):
                setattr(owner, name, torch.zeros(old.shape, dtype=old.dtype, device=device))


def _add_adapters(model: PreTrainedModel, lora: Lora) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise UserError("LoRA is measured with peft, which this Python does not have: pip install peft") from None
    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    if targets == "all-linear":
        head = model.get_output_embeddings()
        found = {n.rsplit(".", 1)[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head}
        targets = sorted(found)
    config = LoraConfig(r=lora.rank, lora_alpha=int(lora.alpha), target_modules=targets, lora_dropout=0.0)
    inject_adapter_in_model(config, model)
    # Else no gradient reaches the adapters of a checkpointed layer: its input needs none.
    model.enable_input_require_grads()
