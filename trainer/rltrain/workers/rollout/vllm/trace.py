"""Listens to a vLLM model that runs eagerly in one process: the operations of a decoder, under shared names.

vLLM fuses: queries, keys and values come out of one product, and so do gate and up; the residual is added inside the
norm that follows, which returns (normed, residual).
"""

# vLLM has no stubs.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rltrain.core.errors import UserError
from rltrain.tracing.names import EMBEDDING, LOGITS, NORM, OUTPUT, in_layer
from rltrain.tracing.recorder import Recorder, add_log_probs

_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.+)")
_FUSED = {
    "self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "mlp.gate_up_proj": ("gate_proj", "up_proj"),
}
_PLAIN = frozenset({"self_attn.q_norm", "self_attn.k_norm", "self_attn.o_proj", "mlp.down_proj"})
_READ = {
    "self_attn.attn": ("q_rotary", "k_rotary"),
    "self_attn.o_proj": ("attention",),
    "mlp.down_proj": ("activation",),
}
"""Modules whose inputs are no module's output."""


def listen(model: nn.Module) -> Recorder:
    """A recorder that hears MODEL's operations, until it is closed."""
    recorder = Recorder()
    layers = [int(parts[1]) for path, _ in model.named_modules() if (parts := _LAYER.fullmatch(path))]
    for path, module in model.named_modules():
        parts, last = _LAYER.fullmatch(path), path.rpartition(".")[2]
        if parts:
            _listen_in_layer(recorder, module, int(parts[1]), parts[2])
        elif last == NORM and layers:
            _listen_to_norm(recorder, module, NORM, in_layer(max(layers), OUTPUT))
        elif last in (EMBEDDING, "logits_processor"):
            recorder.on_output(module, _adder(recorder, EMBEDDING if last == EMBEDDING else LOGITS))
    return recorder


def finish(recorder: Recorder, file: Path, num_prompt: int, num_rows: int, log_probs: Sequence[float]) -> None:
    """Write what RECORDER heard to FILE: NUM_ROWS tokens, the first NUM_PROMPT of them the prompt.

    Logits come out of order: of the prompt's tokens in one piece (of some versions without its last), of every token
    that is sampled from in a piece of one row.

    Raises:
        UserError: the engine read in other passes than one for the prompt and one for each further token.
    """
    passes = [len(part) for part in recorder.parts(EMBEDDING)]
    wanted = [num_prompt] + [1] * (num_rows - num_prompt)
    if passes and passes[: len(wanted)] != wanted:
        raise UserError(
            f"operations are not traced: this vLLM read {num_rows} tokens in passes of {passes[:4]}, not the prompt of "
            f"{num_prompt} at once; raise actor_rollout_ref.rollout.max_num_batched_tokens"
        )
    parts = recorder.parts(LOGITS)
    prompt = [part[: num_prompt - 1] for part in parts if len(part) > 1]
    recorder.replace(LOGITS, [*prompt[:1], *(part for part in parts if len(part) == 1)])
    add_log_probs(recorder, log_probs)
    recorder.save(file, num_rows)


def _listen_in_layer(recorder: Recorder, module: nn.Module, layer: int, path: str) -> None:
    last = path.rpartition(".")[2]
    if path in _READ:
        adders = [_adder(recorder, in_layer(layer, operation)) for operation in _READ[path]]
        recorder.on_input(module, lambda args: _each(adders, args))
    if path in _FUSED:
        sizes: list[int] = getattr(module, "output_partition_sizes", [])
        names = [in_layer(layer, operation) for operation in _FUSED[path]]
        if len(sizes) == len(names):
            recorder.on_output(module, _splitter(recorder, names, sizes))
    elif path in _PLAIN:
        recorder.on_output(module, _adder(recorder, in_layer(layer, last)))
    elif path == "input_layernorm":
        before = in_layer(layer - 1, OUTPUT) if layer else None
        _listen_to_norm(recorder, module, in_layer(layer, path), before)
    elif path == "post_attention_layernorm":
        _listen_to_norm(recorder, module, in_layer(layer, path), in_layer(layer, "attention_residual"))


def _listen_to_norm(recorder: Recorder, module: nn.Module, name: str, residual: str | None) -> None:
    """RESIDUAL: the operation that the norm does first; None: it does not."""

    def take(output: Any) -> None:
        if isinstance(output, Tensor):
            recorder.add(name, output)
            return
        recorder.add(name, output[0])
        if residual is not None:
            recorder.add(residual, output[1])

    recorder.on_output(module, take)


def _each(adders: Sequence[Callable[[Any], None]], values: Sequence[Any]) -> None:
    for add, value in zip(adders, values, strict=False):
        add(value)


def _adder(recorder: Recorder, name: str) -> Callable[[Any], None]:
    def add(output: Any) -> None:
        values: Any = output if isinstance(output, Tensor) else output[0]
        recorder.add(name, values.flatten(1))

    return add


def _splitter(recorder: Recorder, names: Sequence[str], sizes: Sequence[int]) -> Callable[[Any], None]:
    def add(output: Any) -> None:
        values: Tensor = output if isinstance(output, Tensor) else output[0]
        for name, piece in zip(names, values.split(list(sizes), dim=-1), strict=True):
            recorder.add(name, piece)

    return add
