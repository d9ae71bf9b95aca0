"""Checksums of weights that two processes can compute apart, on different devices, from different shards.

The bits of element i are multiplied by a pseudo-random odd number made from i, and the products are added modulo 2^64
(a multilinear hash, Carter and Wegman 1979). Integer addition has no rounding and no order, so that CPU and GPU agree
and the shards of a tensor add up to the checksum of the whole. A swapped pair of elements changes it, unlike a plain
sum. Minus zero counts as zero: an engine that hands its weights back through a product cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rltrain.core.tensors import ints

_MASK = (1 << 64) - 1
_CHUNK_ELEMENTS, _GPU_CHUNK = 1 << 22, 1 << 24
"""Of what is summed up at a time: each takes some 30 bytes meanwhile, and each time twenty calls."""
_BITS = {1: (torch.uint8, 0xFF), 2: (torch.int16, 0xFFFF), 4: (torch.int32, 0xFFFFFFFF), 8: (torch.int64, -1)}
# Odd constants of splitmix64 (Steele, Lea, Flood 2014), as signed 64-bit numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = 0xBF58476D1CE4E5B9 - (1 << 64)


@dataclass(frozen=True)
class Piece:
    """The part of a tensor that one process holds: a block of rows, or of columns, and its share of the sum."""

    dim: int
    start: int
    stop: int
    total: int
    """Size of the whole tensor along `dim`."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    dtype: torch.dtype
    value: int


def checksum(tensor: Tensor) -> str:
    """Checksum of the whole TENSOR: dtype, shape, and 64 bits."""
    return combine([piece(tensor)])


@dataclass(frozen=True)
class Part:
    """What a `Piece` is made of: a shard on any device, the axis that was cut (0, or 1 of a matrix), where it begins
    along that, and the size of the whole there (None: it is the whole)."""

    values: Tensor
    dim: int = 0
    start: int = 0
    total: int | None = None


def piece(part: Tensor, dim: int = 0, start: int = 0, total: int | None = None) -> Piece:
    """The share of PART in the checksum of the tensor that it was cut from; arguments as of `Part`."""
    return pieces([("", Part(part, dim, start, total))])[""][0]


def pieces(parts: Iterable[tuple[str, Part]]) -> dict[str, list[Piece]]:
    """The pieces of PARTS by name. Each part is let go once its sum is under way; the device is waited for once."""
    named: list[tuple[str, Piece]] = []
    sums: list[Tensor] = []
    for name, part in parts:
        whole, total = _shape_and_sum(part)
        values, size = part.values, part.values.shape[part.dim] if part.values.ndim else 1
        named.append((name, Piece(part.dim, part.start, part.start + size, whole[part.dim], whole, values.dtype, 0)))
        sums.append(total)
    found: dict[str, list[Piece]] = {}
    places = {total.device for total in sums}
    numbers = ints(torch.stack(sums)) if len(places) == 1 else [int(total) for total in sums]  # or none at all
    for (name, one), value in zip(named, numbers, strict=True):
        found.setdefault(name, []).append(replace(one, value=value & _MASK))
    return found


def _shape_and_sum(part: Part) -> tuple[tuple[int, ...], Tensor]:
    """Shape of the whole tensor, and the share of PART in its sum, int64 [], on its device."""
    values, dim = part.values, part.dim
    if values.ndim == 0:
        values = values.reshape(1)
    whole = values.shape[dim] if part.total is None else part.total
    shape = (*values.shape[:dim], whole, *values.shape[dim + 1 :])
    rows = values.detach().reshape(values.shape[0], torch.Size(values.shape[1:]).numel())
    num_columns = shape[1] if dim == 1 else rows.shape[1]
    first_row, first_column = (part.start, 0) if dim == 0 else (0, part.start)
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    step = max(1, (_GPU_CHUNK if values.is_cuda else _CHUNK_ELEMENTS) // max(1, rows.shape[1]))
    for row in range(0, rows.shape[0], step):
        total += _sum(rows[row : row + step], first_row + row, first_column, num_columns)
    return shape, total


def combine(pieces: Iterable[Piece]) -> str:
    """The checksum of a tensor from PIECES that together hold all of it, some perhaps more than once.

    Copies of a part must agree, and parts must cover the whole; otherwise the words say what is wrong, and equal no
    checksum.
    """
    parts: dict[tuple[int, int], Piece] = {}
    for one in pieces:
        if parts.setdefault((one.start, one.stop), one) != one:
            return f"copies of [{one.start}:{one.stop}] differ"
    ordered = [parts[key] for key in sorted(parts)]
    ends = [0, *(one.stop for one in ordered)]
    if [one.start for one in ordered] != ends[:-1] or ends[-1] != ordered[0].total:
        return f"parts {sorted(parts)} do not make up {ordered[0].total}"
    first, value = ordered[0], sum(one.value for one in ordered) & _MASK
    return f"{str(first.dtype).removeprefix('torch.')}{list(first.shape)}:{value:016x}"


def combined(ranks: Sequence[Mapping[str, Piece]]) -> dict[str, str]:
    """Checksums of whole tensors, from the pieces that each of RANKS holds, by name."""
    names = dict.fromkeys(name for rank in ranks for name in rank)
    return {name: combine(rank[name] for rank in ranks if name in rank) for name in names}


def verify(actors: Mapping[str, str], held: Mapping[str, str]) -> str | None:
    """What differs between the checksums of the ACTOR'S weights and those that an engine HELD; None: nothing.

    Returns:
        one line that names the first tensor that differs (in the actor's order) and counts the others.
    """
    wrong = [name for name, value in actors.items() if held.get(name) != value]
    if not wrong:
        return None
    name = wrong[0]
    return (
        f"{len(wrong)} of {len(actors)} weights differ, the first is '{name}': "
        f"the actor has {actors[name]}, the engine holds {held.get(name, 'nothing of that name')}"
    )


def _sum(rows: Tensor, first_row: int, first_column: int, num_columns: int) -> Tensor:
    """Sum of (bits x multiplier) over ROWS, which begin at (FIRST_ROW, FIRST_COLUMN) of a matrix NUM_COLUMNS wide."""
    values = rows + 0.0 if rows.is_floating_point() else rows.to(torch.int64)
    bits_dtype, mask = _BITS[values.dtype.itemsize]
    bits = values.contiguous().view(bits_dtype).to(torch.int64) & mask
    line = torch.arange(first_row, first_row + rows.shape[0], device=rows.device, dtype=torch.int64)
    column = torch.arange(first_column, first_column + rows.shape[1], device=rows.device, dtype=torch.int64)
    mixed = (line[:, None] * num_columns + column[None, :] + 1) * _GOLDEN
    mixed = (mixed ^ (mixed >> 30)) * _MIX
    mixed = mixed ^ (mixed >> 27) | 1
    return (bits * mixed).sum()
