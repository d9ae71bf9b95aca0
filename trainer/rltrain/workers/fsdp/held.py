"""Checksums of the weights that this rank holds, taken where they are: the proof of a sync shares no code with it.

Nothing is gathered, packed or sent, so a weight that went stale anywhere on its way to an engine differs from these.
"""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from rltrain.workers.sync.checksum import Part, Piece
from rltrain.workers.sync.checksum import pieces as summed


@torch.no_grad()
def pieces(model: nn.Module, dtype: torch.dtype, names: Collection[str] | None = None) -> dict[str, Piece]:
    """This rank's piece of each parameter and persistent buffer of MODEL, floating-point ones cast to DTYPE first.

    Args:
        model: sharded, with its shards in place (not gathered by a pass); tied weights count once.
        dtype: in which engines hold floating-point weights.
        names: of those that are wanted; None: all.
    """
    kept = model.state_dict().keys()
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in kept}
    found = {**dict(model.named_parameters()), **buffers}
    wanted = ((name, tensor) for name, tensor in found.items() if names is None or name in names)
    return {name: one for name, (one,) in summed((name, _part(tensor, dtype)) for name, tensor in wanted).items()}


def _part(tensor: Tensor, dtype: torch.dtype) -> Part:
    wanted = dtype if tensor.is_floating_point() else tensor.dtype
    if not isinstance(tensor, DTensor):
        return Part(tensor.to(wanted))
    shard, cut = tensor.to_local().to(wanted), [one.dim for one in tensor.placements if isinstance(one, Shard)]
    if not cut:
        return Part(shard)
    (dim,) = cut
    return Part(shard, dim, first_index(tensor, dim), tensor.shape[dim])


def first_index(tensor: DTensor, dim: int) -> int:
    """Where this rank's shard begins along DIM: shards are as `Tensor.chunk` cuts them."""
    mesh, place = tensor.device_mesh, next(i for i, one in enumerate(tensor.placements) if isinstance(one, Shard))
    size, total = mesh.size(place), tensor.shape[dim]
    return min(total, mesh.get_local_rank(place) * -(-total // size))
