"""Inside each of SGLang's model processes: loads buckets into the live model, and reads back what its layers hold."""

# SGLang has no stubs.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rltrain.core.errors import RunFailure, first_line
from rltrain.workers.rollout.names import engine_name
from rltrain.workers.rollout.readback import Kinds, pieces
from rltrain.workers.sync.receiver import Receivers
from rltrain.workers.sync.transport import Descriptor
from rltrain.workers.sync.wire import Call, packed_pieces

FUSED: Mapping[str, Sequence[str]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""As the loaders of SGLang's decoders have them; models say it under several names, or not at all."""


def answer(runner: Any, text: str) -> tuple[bool, str]:
    """What SGLang's end point is to say: whether all processes did the call TEXT, and their answers as a JSON list."""
    call = Call.read(json.loads(text))
    try:
        own: Any = [None, _inside(runner).do(call)]
    except Exception as error:  # the server must live on, whatever a weight loader raises
        own = [f"{first_line(error)}", None]
    found: list[Any] = [None] * runner.tp_size
    if runner.tp_size > 1:
        from sglang.srt.distributed import get_tp_group

        torch.distributed.all_gather_object(found, own, group=get_tp_group().cpu_group)
    else:
        found = [own]
    errors = [words for words, _ in found if words is not None]
    return (False, errors[0]) if errors else (True, json.dumps([value for _, value in found]))


def _inside(runner: Any) -> Inside:
    """The one of this process, made at the first call."""
    if id(runner) not in _INSIDES:
        _INSIDES[id(runner)] = Inside(runner)
    return _INSIDES[id(runner)]


class Inside:
    """One model process of the server."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._receivers = Receivers(torch.device("cuda", torch.cuda.current_device()))
        self._expected: set[str] = set()
        self._components: dict[str, tuple[set[int], int]] = {}

    def do(self, call: Call) -> Any:
        """Do CALL.

        Raises:
            RunFailure: weights are missing, or unknown to the model.
        """
        if call.name == "connect":
            assert call.address is not None
            self._receivers.connect(call.address, call.first_rank + self._runner.tp_rank)
        elif call.name == "load":
            assert call.descriptor is not None
            self._load(call.descriptor)
        elif call.name == "pieces":
            runner, model = self._runner, self._runner.model
            fused = _fused(model)
            return packed_pieces(
                pieces(model, call.names, runner.tp_rank, runner.tp_size, runner.dtype, _kinds(), fused)
            )
        return None

    @torch.no_grad()
    def _load(self, descriptor: Descriptor) -> None:
        model: nn.Module = self._runner.model
        bucket = descriptor.bucket
        if bucket.index == 0:
            self._expected = {name for name, _ in model.named_parameters()}
            self._components = {}
        for entry in bucket.entries:
            where = engine_name(model, entry.name, _fused(model))
            if where.path not in self._expected:
                raise RunFailure(f"weight sync: this engine's model has no weight '{entry.name}' ({where.path})")
            found, _ = self._components.setdefault(where.path, (set(), where.num_components))
            found.add(where.component)
        loader: Any = model
        loader.load_weights(iter(self._receivers.tensors(descriptor, keep=False)))
        torch.cuda.synchronize()
        if bucket.is_last:
            self._receivers.close()
            partial = {path for path, (found, number) in self._components.items() if len(found) < number}
            missing = sorted((self._expected - self._components.keys()) | partial)
            if missing:
                raise RunFailure(
                    f"weight sync: {len(missing)} weights of the engine did not come (or not in full), the first is "
                    f"'{missing[0]}'"
                )


def _fused(model: nn.Module) -> dict[str, Sequence[str]]:
    there = {path.rpartition(".")[2] for path, _ in model.named_modules()}
    return {name: parts for name, parts in FUSED.items() if name in there}


def _kinds() -> Kinds:
    from sglang.srt.layers import linear
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    return Kinds(
        linear.QKVParallelLinear,
        linear.MergedColumnParallelLinear,
        linear.ColumnParallelLinear,
        linear.RowParallelLinear,
        VocabParallelEmbedding,
    )


_INSIDES: dict[int, Inside] = {}
"""By the model runner, of which a process has one."""
