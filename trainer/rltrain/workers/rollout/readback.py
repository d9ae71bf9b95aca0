"""What a process of vLLM or SGLang really holds of a published weight: found, unfused, unpacked, and summed up.

The names of the Hugging Face checkpoint are mapped by `names.engine_name`, the place of a shard by the kind of its
layer; SGLang's layers are vLLM's under another roof. Weights that vLLM's CPU build has packed out of sight are read
through the layer itself: the product with the identity is the weight, to the bit, because a sum with one term that is
not zero is not rounded.
"""

# The layers have no stubs.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from rltrain.core.errors import UserError
from rltrain.workers.rollout.names import EngineName, engine_name
from rltrain.workers.sync.checksum import Part, Piece
from rltrain.workers.sync.checksum import pieces as summed

REARRANGED = frozenset({"BloomForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM"})
"""Classes that transpose or interleave weights while they load them: what they hold is no part of what came."""


@dataclass(frozen=True)
class Kinds:
    """The engine's classes of layers."""

    qkv: type[nn.Module]
    merged: type[nn.Module]
    column: type[nn.Module]
    row: type[nn.Module]
    embedding: type[nn.Module]


@dataclass(frozen=True)
class Place:
    """Where a worker keeps its part of a published tensor."""

    rows: slice
    """Of the worker's own tensor; all of its columns."""
    dim: int
    start: int
    """Of the published tensor, along `dim`."""
    total: int | None
    """Size of the published tensor along `dim`; None: the part is the whole."""


@torch.no_grad()
def pieces(
    model: nn.Module,
    names: Sequence[str],
    rank: int,
    size: int,
    dtype: torch.dtype,
    kinds: Kinds,
    fused: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[Piece]]:
    """The parts that this worker holds of the tensors NAMES, each computed from what the layer uses.

    Args:
        model: the engine's.
        names: as published.
        rank: of this worker in tensor parallelism.
        size: of tensor parallelism.
        dtype: of the published tensors, where they are not integers.
        kinds: how the engine calls its layers.
        fused: see `engine_name`.

    Raises:
        UserError: a model or a layer of a kind that cannot be read back.
    """
    if type(model).__name__ in REARRANGED:
        raise _unreadable(names[0], f"{type(model).__name__} rearranges its weights on loading")
    return summed(_parts(model, names, rank, size, dtype, kinds, fused))


def _parts(
    model: nn.Module,
    names: Sequence[str],
    rank: int,
    size: int,
    dtype: torch.dtype,
    kinds: Kinds,
    fused: Mapping[str, Sequence[str]] | None,
) -> Iterator[tuple[str, Part]]:
    shared = owners(model)
    for name in names:
        where = engine_name(model, name, fused)
        module, attribute = _module(model, where.module, name), where.attribute
        place = _place(module, where, rank, size, name, kinds)
        held = module._parameters.get(attribute)  # pyright: ignore[reportPrivateUsage]
        sharers = shared.get(id(held), [module]) if attribute == "weight" else [module]
        for sharer in sharers:
            for values in _values(sharer, attribute):
                yield name, Part(_cast(values[place.rows], dtype), place.dim, place.start, place.total)


def _module(model: nn.Module, path: str, name: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise _unreadable(name, str(error)) from error


def _place(module: nn.Module, where: EngineName, rank: int, size: int, name: str, kinds: Kinds) -> Place:
    layer: Any = module
    attribute, component, is_fused = where.attribute, where.component, where.num_components > 1
    everything = Place(slice(None), 0, 0, None)
    if isinstance(module, kinds.qkv) and is_fused:
        return _qkv_place(layer, component, rank, size)
    if isinstance(module, kinds.merged) and is_fused:
        rows = [output // size for output in layer.output_sizes]
        first = sum(rows[:component])
        return Place(slice(first, first + rows[component]), 0, rank * rows[component], layer.output_sizes[component])
    if isinstance(module, kinds.embedding):
        vocab = layer.shard_indices
        return Place(slice(0, vocab.num_org_elements), 0, vocab.org_vocab_start_index, layer.org_vocab_size)
    if isinstance(module, kinds.qkv | kinds.merged) and size > 1:
        raise _unreadable(name, f"{type(module).__name__} holds it fused and sharded")
    if isinstance(module, kinds.column):
        rows = layer.output_size_per_partition
        return Place(slice(None), 0, rank * rows, layer.output_size)
    if isinstance(module, kinds.row) and attribute == "weight":
        columns = layer.input_size_per_partition
        return Place(slice(None), 1, rank * columns, layer.input_size)
    if attribute not in module._parameters and attribute not in module._buffers:  # pyright: ignore[reportPrivateUsage]
        raise _unreadable(name, f"{type(module).__name__} has no '{attribute}'")
    return everything


def _qkv_place(layer: Any, component: int, rank: int, size: int) -> Place:
    """Queries are dealt to the workers; a key-value head may be on several of them."""
    rows = [
        layer.num_heads * layer.head_size,
        layer.num_kv_heads * layer.head_size,
        layer.num_kv_heads * layer.v_head_size,
    ]
    first = [0, *accumulate(rows)][component]
    block = rank if component == 0 else rank // layer.num_kv_head_replicas
    heads = layer.total_num_heads if component == 0 else layer.total_num_kv_heads
    total = heads * (layer.v_head_size if component == 2 else layer.head_size)
    return Place(slice(first, first + rows[component]), 0, block * rows[component], total)


def _values(module: nn.Module, attribute: str) -> Iterator[Tensor]:
    """What MODULE holds as ATTRIBUTE: the tensor itself if it has elements, and the packed copy if it has one."""
    held: Tensor = getattr(module, attribute)
    if held.numel():
        yield held
    if attribute == "weight" and "cpu_linear" in vars(module):
        layer: Any = module
        num_inputs = held.shape[1] if held.numel() else layer.input_size_per_partition
        yield layer.quant_method.apply(layer, torch.eye(num_inputs, dtype=held.dtype)).t()


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values


def _unreadable(name: str, reason: str) -> UserError:
    return UserError(
        f"trainer.verify_weight_sync: weight '{name}' cannot be read back from the engine ({reason}); set it to false "
        "for this model"
    )


def owners(model: nn.Module) -> dict[int, list[nn.Module]]:
    """The modules that each parameter called `weight` belongs to, by the parameter's identity."""
    found: dict[int, list[nn.Module]] = defaultdict(list)
    for module in model.modules():
        weight = module._parameters.get("weight")  # pyright: ignore[reportPrivateUsage] (modules without one: None)
        if weight is not None and weight.numel():
            found[id(weight)].append(module)
    return found
