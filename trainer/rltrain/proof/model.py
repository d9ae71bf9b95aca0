"""The reference's model: transformers' own forward pass, eager attention, one row at a time, no padding, no packing."""

# Transformers' Auto classes are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

Named = Mapping[str, Tensor]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where passes run, and what has a number for each word of the vocabulary; the rest is on the host."""
_MOST_LAYERS, _MOST_BUFFERS = 1000, 1 << 28
"""More layers or experts than tensors, and larger tables of constants, no real model has."""


class CannotBuild(ValueError):
    """Why there is no model, in one line."""


def _config(values: Mapping[str, Any]) -> Any:
    kind = str(values.get("model_type", ""))
    if kind not in CONFIG_MAPPING:
        raise CannotBuild(f"transformers knows no model of type '{kind}'")
    plain = {key: value for key, value in values.items() if key not in ("auto_map", "quantization_config")}
    config = CONFIG_MAPPING[kind].from_dict(plain)
    for key, value in config.to_dict().items():
        if isinstance(value, float) and ("drop" in key):
            setattr(config, key, 0.0)
    return config


class ValueNet(nn.Module):
    """A backbone, and V = w h + b of its last hidden state (GAE's baseline; the head computes in float32 or more)."""

    def __init__(self, backbone: Any, width: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.ModuleDict({"linear": nn.Linear(width, 1)})

    def forward(self, **inputs: Any) -> Tensor:
        """Values `[1, L]`."""
        linear, hidden = self.head["linear"], self.backbone(**inputs).last_hidden_state
        return linear(hidden.to(linear.weight.dtype))[..., 0]


def build(values: Mapping[str, Any], weights: Named, compute: torch.dtype, dtype: torch.dtype, value: bool) -> Any:
    """A model of the config VALUES with WEIGHTS rounded to COMPUTE, as ranks and engines round them, held in DTYPE.

    VALUE: a critic. Only parameters are cast: tables of rotary angles stay float32 everywhere.

    Raises:
        CannotBuild: transformers does not know it, or weights are missing or have other shapes.
    """
    try:
        _check_size(values, weights, value)
        model = _made(_config(values), value)
        model.load_state_dict(dict(weights), strict=False)
    except CannotBuild:
        raise
    except Exception as error:
        raise CannotBuild(f"the model cannot be built: {' '.join(str(error).split())[:200]}") from None
    for name, parameter in model.named_parameters():
        exact = name.startswith("head.")
        wanted = torch.promote_types(dtype, torch.float32) if exact else dtype
        parameter.data = (parameter.data if exact else parameter.data.to(compute)).to(wanted)
    return model.to(DEVICE).eval()


def _made(config: Any, value: bool) -> Any:
    maker: Any = AutoModel if value else AutoModelForCausalLM
    model: Any = maker.from_config(config, attn_implementation="eager", dtype=torch.float32)
    return ValueNet(model, model.get_input_embeddings().embedding_dim) if value else model


def _check_size(values: Mapping[str, Any], weights: Named, value: bool) -> None:
    """Refuse a config that asks for more than WEIGHTS hold, before memory is taken for it.

    Raises:
        CannotBuild: weights are missing or have other shapes.
    """
    for key, number in values.items():
        if re.search("layer|expert", key) and isinstance(number, int) and number > max(len(weights), _MOST_LAYERS):
            raise CannotBuild(f"the config asks for {key}={number}, the capsule holds {len(weights)} tensors")
    with torch.device("meta"):
        model = _made(_config(values), value)
    needed = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if missing := sorted(needed.keys() - weights.keys()):
        raise CannotBuild(f"{len(missing)} of {len(needed)} weights are missing, the first is '{missing[0]}'")
    for name, shape in needed.items():
        if shape != tuple(weights[name].shape):
            found = list(weights[name].shape)
            raise CannotBuild(f"'{name}' has shape {found}, a model of this config has {list(shape)}")
    if sum(buffer.numel() for buffer in model.buffers()) > _MOST_BUFFERS:
        raise CannotBuild(f"a model of this config has tables of more than {_MOST_BUFFERS} constants")


def saved_weights(directory: Path) -> dict[str, Tensor]:
    """The tensors of a Hugging Face directory, from its safetensors alone.

    Raises:
        CannotBuild: there are none.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files or not all(file.is_file() for file in files):
        raise CannotBuild(f"{directory} holds no safetensors; give the checkpoint that the step began with")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@dataclass(frozen=True)
class Tokens:
    """One row: PROMPT and ANSWER, and where its first token is (0; others are tried as explanations)."""

    prompt: list[int]
    answer: list[int]
    first: int = 0

    def inputs(self) -> dict[str, Tensor]:
        """For a model, `[1, L]`."""
        ids = torch.tensor([self.prompt + self.answer])
        places = torch.arange(self.first, self.first + ids.shape[1])[None]
        return {"input_ids": ids.to(DEVICE), "position_ids": places.to(DEVICE)}


def logits_of(model: Any, row: Tokens) -> Tensor:
    """`[N, V]`: what predicts each of the N tokens of the answer; at least float32, where the model is."""
    out = model(**row.inputs(), use_cache=False, logits_to_keep=len(row.answer) + 1).logits[0, :-1]
    return out.to(torch.promote_types(out.dtype, torch.float32))


def values_of(model: Any, row: Tokens) -> Tensor:
    """`[N]`: the value of the state before each token of the answer."""
    return model(**row.inputs(), use_cache=False)[0, len(row.prompt) - 1 : -1].cpu()


def log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """log p = z / T - log sum exp(z / T), `[N, V]`."""
    return (logits / temperature).log_softmax(-1)


def picked(log_p: Tensor, answer: Sequence[int]) -> Tensor:
    """The log-probability of each token of ANSWER, `[N]`."""
    return log_p[torch.arange(len(answer)), torch.tensor(list(answer))]


def entropy(log_p: Tensor) -> Tensor:
    """Shannon's, in nats: - sum p log p, `[N]`."""
    return -(log_p.exp() * log_p).sum(-1)


def drawn_from(log_p: Tensor, top_k: int, top_p: float, banned: Tensor) -> Tensor:
    """The distribution that an engine draws from, `[N, V]`: without BANNED, then the TOP_K likeliest, then the smallest
    set of the likeliest with mass TOP_P (Holtzman et al. 2020, arXiv:1904.09751, equation 3), renormalised.
    """
    kept = log_p.masked_fill(banned, -torch.inf).log_softmax(-1)
    if 0 < top_k < kept.shape[-1]:
        kept = kept.masked_fill(kept < kept.topk(top_k).values[:, -1:], -torch.inf).log_softmax(-1)
    if top_p < 1:
        ordered, places = kept.exp().sort(dim=-1, descending=True)
        outside = torch.zeros_like(banned).scatter(-1, places, ordered.cumsum(-1) - ordered >= top_p)
        kept = kept.masked_fill(outside, -torch.inf).log_softmax(-1)
    return kept


def gradients(model: Any, rows: Sequence[int], loss_of: Callable[[int], Tensor]) -> dict[str, Tensor]:
    """The sum over ROWS of the gradients of LOSS_OF a row, each row alone, summed in float32 or more."""
    named = dict(model.named_parameters())
    sums = {name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for name, p in named.items()}
    for row in rows:
        loss = loss_of(row)
        if not loss.requires_grad:
            continue
        found_all: Any = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
        for name, found in zip(named, found_all, strict=True):
            if found is not None:
                sums[name] += found
    return {name: found.cpu() for name, found in sums.items()}
