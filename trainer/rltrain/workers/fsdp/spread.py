"""One rank reads a model's files; the others get its weights over the wire, a few at a time.

N ranks on a host that each read the whole model would need N times its size in host memory.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rltrain.core.errors import UserError
from rltrain.workers.fsdp.rank import fail_together

SOURCE = 0
"""The rank that reads."""

Model = TypeVar("Model", bound=nn.Module)


def read_once(read: Callable[[], Model], make: Callable[[], Model]) -> Model:
    """READ the model on rank 0; elsewhere MAKE the same one, whose tensors have shapes and no memory (collective).

    The other ranks wait for rank 0 as for any collective: `actor_rollout_ref.nccl_timeout` seconds.

    Raises:
        UserError: on every rank, why one of them could not.
    """
    model, problem = None, None
    try:
        if dist.get_rank() == SOURCE:
            model = read()
        else:
            with torch.device("meta"):
                model = make()
    except UserError as error:
        problem = str(error)
    fail_together(problem)
    assert model is not None
    _agree(model)
    return model


def _agree(model: nn.Module) -> None:
    """Give MODEL's tensors the types of rank 0's: some weights keep their own when they are read (collective).

    Raises:
        UserError: rank 0's model has other tensors.
    """
    mine = [(name, tuple(tensor.shape)) for name, tensor in _tensors(model)]
    found: list[object] = [(mine, [tensor.dtype for _, tensor in _tensors(model)])]
    dist.broadcast_object_list(found, src=SOURCE)
    [(theirs, dtypes)] = cast("list[tuple[list[tuple[str, tuple[int, ...]]], list[torch.dtype]]]", found)
    problem = None
    if mine != theirs:
        name = next((one[0] for one, other in zip(mine, theirs, strict=False) if one != other), "number of weights")
        problem = f"training ranks {SOURCE} and {dist.get_rank()} have other models ({name}): compare their config.json"
    fail_together(problem)
    for (_, tensor), dtype in zip(_tensors(model), dtypes, strict=True):
        tensor.data = tensor.data.to(dtype)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def spread_parameters(module: nn.Module, device: torch.device, values: Callable[[nn.Parameter], Tensor]) -> None:
    """Bring MODULE's parameters that are not sharded yet from rank 0 to every rank's DEVICE (collective).

    VALUES, called on rank 0, gives a parameter's tensor. What is tied stays tied.
    """
    new: dict[nn.Parameter, nn.Parameter] = {}
    for owner in module.modules():
        for name, old in list(owner.named_parameters(recurse=False, remove_duplicate=False)):
            if isinstance(old, DTensor):
                continue
            if old not in new:
                source = values(old) if dist.get_rank() == SOURCE else old.data
                new[old] = nn.Parameter(_spread(source, device), old.requires_grad)
            setattr(owner, name, new[old])


def spread_buffers(module: nn.Module, device: torch.device) -> None:
    """Bring MODULE's buffers, also those that no file holds, from rank 0 to every rank's DEVICE (collective)."""
    for owner in module.modules():
        for name, old in list(owner.named_buffers(recurse=False)):
            setattr(owner, name, _spread(old, device))


def _spread(tensor: Tensor, device: torch.device) -> Tensor:
    """TENSOR of rank 0 on DEVICE; on other ranks it only says shape and type."""
    if dist.get_rank() == SOURCE:
        whole = tensor.to(device).contiguous()
    else:
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    dist.broadcast(whole, src=SOURCE)
    return whole
