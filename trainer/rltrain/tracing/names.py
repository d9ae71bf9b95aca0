"""The operations of a decoder in the order of computation, and what each of them reads. Pure.

Names are those of transformers' modules of Llama, Qwen2 and Qwen3: `embed_tokens`, `layers.3.q_proj`, `norm`. What is
no module has a name of its own: `q_rotary` and `k_rotary` (queries and keys as attention reads them), `attention` (what
the output projection reads), `attention_residual`, `activation` (what the down projection reads), `output` (of the
layer, residual included), `logits` and `log_probs` (of the tokens that follow).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

EMBEDDING, NORM, LOGITS, LOG_PROBS = "embed_tokens", "norm", "logits", "log_probs"
OUTPUT = "output"

_BEFORE = "(before)"
"""The output of the layer before, or the embedding."""
_LAYER: dict[str, tuple[str, ...]] = {
    "input_layernorm": (_BEFORE,),
    "q_proj": ("input_layernorm",),
    "k_proj": ("input_layernorm",),
    "v_proj": ("input_layernorm",),
    "q_norm": ("q_proj",),
    "k_norm": ("k_proj",),
    "q_rotary": ("q_norm",),
    "k_rotary": ("k_norm",),
    "attention": ("q_rotary", "k_rotary", "v_proj"),
    "o_proj": ("attention",),
    "attention_residual": (_BEFORE, "o_proj"),
    "post_attention_layernorm": ("attention_residual",),
    "gate_proj": ("post_attention_layernorm",),
    "up_proj": ("post_attention_layernorm",),
    "activation": ("gate_proj", "up_proj"),
    "down_proj": ("activation",),
    OUTPUT: ("attention_residual", "down_proj"),
}
LAYER_OPERATIONS = tuple(_LAYER)
_PARTS = re.compile(r"layers\.(\d+)\.(\w+)")


def in_layer(layer: int, operation: str) -> str:
    """The name of OPERATION in decoder LAYER."""
    return f"layers.{layer}.{operation}"


def layer_of(name: str) -> int:
    """The decoder layer that NAME is in; -1: none."""
    parts = _PARTS.fullmatch(name)
    return int(parts[1]) if parts else -1


def ordered(names: Iterable[str]) -> list[str]:
    """NAMES in the order of computation."""
    last = {NORM: 1, LOGITS: 2, LOG_PROBS: 3}

    def place(name: str) -> tuple[int, int, int]:
        parts = _PARTS.fullmatch(name)
        if parts:
            return 0, int(parts[1]), LAYER_OPERATIONS.index(parts[2])
        return last.get(name, 0), -1, 0

    return sorted(names, key=place)


def inputs(name: str, known: Collection[str], num_layers: int) -> tuple[str, ...]:
    """The operations of KNOWN that NAME reads; one that is not known stands for what it reads itself."""
    found: list[str] = []
    for one in _reads(name, num_layers):
        found += [one] if one in known else inputs(one, known, num_layers)
    return tuple(dict.fromkeys(found))


def expected(num_layers: int, known: Collection[str]) -> list[str]:
    """What a decoder of NUM_LAYERS computes, in order. Norms of queries and keys count only where KNOWN has them."""
    optional = {operation for operation in ("q_norm", "k_norm") if in_layer(0, operation) in known}
    layers = [
        in_layer(layer, operation)
        for layer in range(num_layers)
        for operation in LAYER_OPERATIONS
        if operation in optional or not operation.endswith("_norm")
    ]
    return [EMBEDDING, *layers, NORM, LOGITS, LOG_PROBS]


def _reads(name: str, num_layers: int) -> tuple[str, ...]:
    parts = _PARTS.fullmatch(name)
    if parts:
        layer = int(parts[1])
        before = in_layer(layer - 1, OUTPUT) if layer else EMBEDDING
        return tuple(before if one == _BEFORE else in_layer(layer, one) for one in _LAYER[parts[2]])
    last = in_layer(num_layers - 1, OUTPUT) if num_layers else EMBEDDING
    return {NORM: (last,), LOGITS: (NORM,), LOG_PROBS: (LOGITS,)}.get(name, ())
