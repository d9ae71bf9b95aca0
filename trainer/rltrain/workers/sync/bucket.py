"""Buckets: named tensors packed one behind the other into a buffer of bytes. Pure: knows no transport.

Both sides hold the same plan, so that only bytes travel. A tensor is never cut: one that is larger than a bucket gets
a bucket of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT_BYTES = 256
"""Tensors begin at multiples of this: every dtype can be viewed in place, and GPU copies are aligned."""

Manifest = Sequence[tuple[str, tuple[int, ...], torch.dtype]]
"""Name, shape and dtype of each weight, in the order in which they will come."""


@dataclass(frozen=True)
class Entry:
    """Where one tensor is in its bucket."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset_bytes: int
    num_bytes: int


@dataclass(frozen=True)
class Bucket:
    """What one buffer holds."""

    index: int
    entries: tuple[Entry, ...]
    num_bytes: int
    is_last: bool


def plan(manifest: Manifest, bucket_bytes: int) -> tuple[Bucket, ...]:
    """Deal MANIFEST into buckets of at most BUCKET_BYTES, in order.

    Raises:
        ValueError: there is nothing to deal, or a name comes twice.
    """
    names = [name for name, _, _ in manifest]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a manifest of {len(names)} weights with {len(set(names))} different names")
    groups: list[list[Entry]] = [[]]
    end = 0
    for name, shape, dtype in manifest:
        num_bytes = dtype.itemsize * torch.Size(shape).numel()
        if groups[-1] and end + num_bytes > bucket_bytes:
            groups.append([])
            end = 0
        groups[-1].append(Entry(name, tuple(shape), dtype, end, num_bytes))
        end += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return tuple(
        Bucket(index, tuple(entries), entries[-1].offset_bytes + entries[-1].num_bytes, index == len(groups) - 1)
        for index, entries in enumerate(groups)
    )


def largest_bytes(buckets: Sequence[Bucket]) -> int:
    """Size of a buffer that any of BUCKETS fits in."""
    return max(bucket.num_bytes for bucket in buckets)


def take(bucket: Bucket, weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[Entry, Tensor]]:
    """The next tensors of WEIGHTS, held against what BUCKET expects.

    Raises:
        ValueError: they end early, or differ from the plan in name, shape or dtype.
    """
    for entry in bucket.entries:
        name, tensor = next(weights, ("nothing more", torch.empty(0)))
        if (name, tuple(tensor.shape), tensor.dtype) != (entry.name, entry.shape, entry.dtype):
            raise ValueError(
                f"weight '{entry.name}' {list(entry.shape)} {entry.dtype} should come, "
                f"got '{name}' {list(tensor.shape)} {tensor.dtype}"
            )
        yield entry, tensor


def store(entry: Entry, tensor: Tensor, buffer: Tensor) -> None:
    """Copy TENSOR to its place in BUFFER `[bytes]` uint8."""
    _view(entry, buffer).copy_(tensor)


def unpack(bucket: Bucket, buffer: Tensor) -> list[tuple[str, Tensor]]:
    """The tensors of BUCKET as views of BUFFER `[bytes]` uint8."""
    return [(entry.name, _view(entry, buffer)) for entry in bucket.entries]


def _view(entry: Entry, buffer: Tensor) -> Tensor:
    return buffer[entry.offset_bytes : entry.offset_bytes + entry.num_bytes].view(entry.dtype).view(entry.shape)
