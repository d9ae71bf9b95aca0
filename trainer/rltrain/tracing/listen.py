"""Listens to a model of transformers: a training rank's, or that of the engine `hf`."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rltrain.tracing.names import EMBEDDING, LOGITS, NORM, OUTPUT, in_layer
from rltrain.tracing.recorder import Recorder

_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)(?:\.(.+))?")
_PLAIN = frozenset(
    {"input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
    | {f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj")}
)
"""Modules within a layer whose output is an operation of the same name."""
_READ = {
    "post_attention_layernorm": "attention_residual",
    "self_attn.o_proj": "attention",
    "mlp.down_proj": "activation",
}
"""Modules whose input is no module's output."""


@contextmanager
def listening(model: nn.Module, given: Mapping[str, Tensor] | None = None) -> Generator[Recorder]:
    """A recorder that hears MODEL's operations on one row, `[1, tokens]` or packed, pass after pass.

    GIVEN: outputs of operations, `[tokens, features]`, that take the place of the model's own once these are recorded.
    Every operation then reads what the operations of GIVEN gave, so that what it adds itself is seen. Tokens beyond
    those of GIVEN keep what they have.
    """
    recorder, attention = Recorder(), dict[int, int]()
    ears = _Ears(recorder, given or {})
    for path, module in model.named_modules():
        parts, last = _LAYER.fullmatch(path), path.rpartition(".")[2]
        if parts:
            ears.in_layer(module, int(parts[1]), parts[2] or "")
            if parts[2] == "self_attn":
                attention[id(module)] = int(parts[1])
        elif last in (EMBEDDING, NORM, "lm_head"):
            recorder.on_output(module, ears.output(LOGITS if last == "lm_head" else last))
    try:
        with _attention(model, ears, attention):
            yield recorder
    finally:
        recorder.close()


class _Ears:
    """Takes what an operation gives, `[1, tokens, …]`, and hands out what the next ones are to read."""

    def __init__(self, recorder: Recorder, given: Mapping[str, Tensor]) -> None:
        self._recorder = recorder
        self._given = given

    def in_layer(self, module: nn.Module, layer: int, path: str) -> None:
        """Listen to MODULE, which is PATH within LAYER; "": the layer itself."""
        if path in _READ:
            self._recorder.on_input(module, self.output(in_layer(layer, _READ[path])))
        if path in _PLAIN:
            self._recorder.on_output(module, self.output(in_layer(layer, path.rpartition(".")[2])))
        elif not path:
            self._recorder.on_output(module, self.output(in_layer(layer, OUTPUT)))

    def output(self, name: str) -> Callable[[Any], Any]:
        """Takes a tensor, or a tuple of which it is the first."""

        def take(output: Any) -> Any:
            if isinstance(output, Tensor):
                return self.hear(name, output)
            return (self.hear(name, output[0]), *output[1:]) if output else None

        return take

    def hear(self, name: str, values: Tensor) -> Tensor:
        """Record VALUES of operation NAME; what the next are to read in their place."""
        rows = values[0].flatten(1)
        self._recorder.add(name, rows)
        given = self._given.get(name)
        if given is None or given.shape[1:] != rows.shape[1:] or len(given) > len(rows):
            return values
        return torch.cat([given.to(rows), rows[len(given) :]]).view(values.shape)


@contextmanager
def _attention(model: nn.Module, ears: _Ears, layers: dict[int, int]) -> Generator[None]:
    """Hear what attention reads: queries and keys after rotation are no module's output."""
    config: Any = model.config
    name: str = config._attn_implementation
    own = ALL_ATTENTION_FUNCTIONS.get(name)
    rotates = any(path.rpartition(".")[2] == "rotary_emb" for path, _ in model.named_modules())
    if own is None or not rotates:  # "eager" is a function of each model's own
        yield
        return

    def heard(module: nn.Module, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
        layer = layers.get(id(module))
        if layer is not None:
            new = query.shape[2]  # with a cache, keys of earlier passes come first
            query = _by_head(ears.hear(in_layer(layer, "q_rotary"), query.transpose(1, 2)))
            fresh = _by_head(ears.hear(in_layer(layer, "k_rotary"), key[:, :, -new:].transpose(1, 2)))
            key = fresh if key.shape[2] == new else key
        return own(module, query, key, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS[name] = heard
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]


def _by_head(values: Tensor) -> Tensor:
    """[1, tokens, heads, size] -> [1, heads, tokens, size]."""
    return values.transpose(1, 2)
