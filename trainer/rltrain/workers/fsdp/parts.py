"""The first numbers of sharded tensors, taken where they are: each rank gives its own, and the controller joins them.

Nothing is gathered, so that a model of any size costs a copy of what is kept.
"""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from rltrain.workers.fsdp.held import first_index
from rltrain.workers.fsdp.optim import local


@dataclass(frozen=True)
class Place:
    """Where COUNT numbers of one tensor are: in `Parts.flat[dtype]` from OFFSET on, in the tensor from START on."""

    dtype: torch.dtype
    offset: int
    count: int
    start: int
    shape: tuple[int, ...]
    """Of the whole tensor."""


@dataclass(frozen=True)
class Parts:
    """What one rank holds of the first numbers of tensors, on the host."""

    flat: dict[torch.dtype, Tensor]
    places: dict[str, Place]


@torch.no_grad()
def parts(tensors: Mapping[str, Tensor], elements: int | None) -> Parts:
    """This rank's share of the first ELEMENTS numbers of each of TENSORS; None: of all. Not collective."""
    pieces: dict[torch.dtype, list[Tensor]] = {}
    places: dict[str, Place] = {}
    offsets: dict[torch.dtype, int] = {}
    for name, tensor in tensors.items():
        shard, start = local(tensor.detach()).reshape(-1), 0
        if isinstance(tensor, DTensor):
            cut = [one.dim for one in tensor.placements if isinstance(one, Shard)]
            assert cut in ([], [0]), f"{name} is cut along {cut}; rows are what FSDP2 shards"
            start = first_index(tensor, 0) * tensor.shape[1:].numel() if cut else 0
        kept = shard if elements is None else shard[: max(elements - start, 0)]
        offset = offsets.get(kept.dtype, 0)
        places[name] = Place(kept.dtype, offset, len(kept), start, tuple(tensor.shape))
        offsets[kept.dtype] = offset + len(kept)
        pieces.setdefault(kept.dtype, []).append(kept)
    # One copy, and one tensor to send: small ones cost more each than their bytes do.
    return Parts({dtype: torch.cat(each).cpu() for dtype, each in pieces.items()}, places)


def joined(ranks: Sequence[Parts], elements: int | None) -> dict[str, Tensor]:
    """The tensors that RANKS hold together, or the first ELEMENTS numbers of each in one row.

    Raises:
        ValueError: ranks do not hold all of a tensor.
    """
    found: dict[str, Tensor] = {}
    for name, place in ranks[0].places.items():
        whole = torch.Size(place.shape).numel()
        count = whole if elements is None else min(whole, elements)
        by_start = {
            rank.places[name].start: rank.flat[place.dtype][
                rank.places[name].offset : rank.places[name].offset + rank.places[name].count
            ]
            for rank in ranks
            if rank.places[name].count
        }
        values = torch.cat([by_start[start] for start in sorted(by_start)]) if by_start else torch.empty(0)
        if len(values) != count:
            raise ValueError(f"ranks hold {len(values)} of the {count} numbers of '{name}' that are kept")
        found[name] = values.reshape(place.shape) if count == whole else values
    return found
