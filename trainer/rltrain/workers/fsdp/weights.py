"""Weights leave the training ranks: gathered one tensor at a time, under their Hugging Face names; and hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping

from rltrain.core.errors import UserError
from rltrain.workers.fsdp.optim import local


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers in state-dict order; tied ones once, under the first name.

    That is what a checkpoint in Hugging Face layout holds: `lm_head.weight` is left out where it is tied.
    """
    seen: set[int] = set()
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    for name in model.state_dict():
        tensor = tensors[name]
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def full_weights(model: nn.Module, dtype: torch.dtype | None, device: str) -> Iterator[tuple[str, Tensor]]:
    """Each weight of MODEL, whole, on every rank (collective: all ranks must iterate to the end).

    Args:
        model: sharded, with its shards in place (not gathered by a pass).
        dtype: to cast floating-point weights to, before they cross the wire; None: as they are.
        device: where to gather; shards on the host are brought there one at a time.
    """
    for name, tensor in named_weights(model):
        yield name, gather(tensor.detach(), dtype, device)


def gather(tensor: Tensor, dtype: torch.dtype | None, device: str) -> Tensor:
    """TENSOR whole on DEVICE (collective where it is sharded)."""
    wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    shard = local(tensor).to(device, wanted)
    if not isinstance(tensor, DTensor):
        return shard
    placed = DTensor.from_local(
        shard, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return placed.full_tensor()


@torch.no_grad()
def copy(source: Tensor, target: Tensor) -> None:
    """Fill TARGET from SOURCE, of its shape (collective where they are sharded over other ranks)."""
    if isinstance(source, DTensor) and isinstance(target, DTensor) and source.device_mesh != target.device_mesh:
        take(target, gather(source, None, str(target.device)))
    else:
        local(target).copy_(local(source))


@torch.no_grad()
def take(tensor: Tensor, whole: Tensor) -> None:
    """Fill TENSOR from WHOLE, of its shape, which each rank has on its host: the counterpart of `gather`."""
    if isinstance(tensor, DTensor):
        placed = distribute_tensor(whole.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
        whole = placed.to_local()
    local(tensor).copy_(whole)


def manifest(model: nn.Module, dtype: torch.dtype) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Name, shape and dtype of what `full_weights` will yield, in its order. Gathers nothing."""
    return [
        (name, tuple(tensor.shape), dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in named_weights(model)
    ]


@torch.no_grad()
def scale(model: nn.Module, factor: float) -> None:
    """Multiply MODEL's floating-point weights by FACTOR in place, this rank's shards of them."""
    for _, tensor in named_weights(model):
        if tensor.is_floating_point():
            local(tensor).mul_(factor)


def parameter_hash(model: nn.Module) -> str:
    """SHA-256 over the bytes and names of this rank's shards."""
    digest = hashlib.sha256()
    for name, tensor in named_weights(model):
        digest.update(name.encode())
        digest.update(local(tensor.detach()).cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def rows_hash(shards: Iterable[Mapping[str, Tensor]]) -> str:
    """SHA-256 over the real tokens of SHARDS, fields of rows as in `rltrain.workers.fsdp.micro.Shard`, on the host."""
    digest = hashlib.sha256()
    for shard in shards:
        digest.update(shard["input_ids"][shard["attention_mask"].bool()].contiguous().numpy().data)
    return digest.hexdigest()


def check_names(model: PreTrainedModel) -> None:
    """Make sure that parameters are named as in a checkpoint, and that engines know them.

    Raises:
        UserError: transformers merges or renames this architecture's weights on loading, or it is a mixture of experts.
    """
    changes = get_model_conversion_mapping(model, add_legacy=False)
    if changes:
        raise UserError(
            f"{type(model).__name__}: transformers renames or merges this architecture's weights on loading"
            f" ({len(changes)} rules), so that the rollout engine would not know them: not supported"
        )
    experts = fused_experts(model)
    if experts is not None:
        raise UserError(
            f"{type(model).__name__}: a mixture of experts ({experts} holds all of them), which is not supported yet:"
            " take a dense model"
        )


def fused_experts(model: nn.Module) -> str | None:
    """The first parameter of MODEL that holds the weights of many experts, [experts, in, out]; None: none does."""
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        if parameter.ndim == 3 and "Expert" in type(owner).__name__:
            return name
    return None
