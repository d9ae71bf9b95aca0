"""What order and seeds have to be: rows of a step, seeds of requests, mini batches, ranks; and checksums of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def _digest(words: str, num_bytes: int) -> int:
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:num_bytes], "big")


def _shuffled(size: int, seed: int) -> list[int]:
    order: Any = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    return order.tolist()


def prompts_of(step: int, per_step: int, size: int, seed: int, shuffle: bool) -> list[str]:
    """The uids, `EPOCH-INDEX`, of STEP (from 1) over a data set of SIZE rows: epochs drop what fills no batch."""
    epoch, place = divmod(step - 1, size // per_step)
    order = _shuffled(size, _digest(f"epoch {epoch} of seed {seed}", 8) >> 1) if shuffle else list(range(size))
    return [f"{epoch}-{index}" for index in order[place * per_step : (place + 1) * per_step]]


def request_seed(seed: int, step: int, uid: str, sample: int) -> int:
    """The seed of one answer: 31 bits of SHA-256 over what names it."""
    return _digest(f"{seed}/{step}/{uid}/{sample}", 4) >> 1


def minis_of(
    role: str, lengths: Sequence[int], size: int, epochs: int, shuffle: bool, seed: int, step: int
) -> list[list[int]]:
    """The rows of each optimizer step of an update: SIZE neighbours of the batch, or of an order drawn by epoch."""
    minis: list[list[int]] = []
    for epoch in range(epochs):
        order = list(range(len(lengths)))
        if shuffle:
            order = _shuffled(len(order), _digest(f"{_digest(f'{seed}/{role} shuffle/{step}', 4)}/epoch/{epoch}", 4))
        minis += [order[start : start + size] for start in range(0, len(order), size)]
    return minis


def dealt(rows: Sequence[int], lengths: Sequence[int], ranks: int, balance: bool) -> list[list[int]]:
    """ROWS of a mini batch by rank, their counts equal within 1. Balanced: longest first, to the rank with the fewest
    tokens that has room. A rank's rows are in the order of the mini batch.
    """
    room = [len(rows) // ranks + (rank < len(rows) % ranks) for rank in range(ranks)]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    places = list(range(len(rows)))
    if balance:
        places.sort(key=lambda place: -lengths[rows[place]])
    loads = [0] * ranks
    for place in places:
        free = [rank for rank in range(ranks) if len(shares[rank]) < room[rank]]
        rank = min(free, key=lambda rank: loads[rank]) if balance else free[0]
        shares[rank].append(place)
        loads[rank] += lengths[rows[place]]
    return [[rows[place] for place in sorted(share)] for share in shares]


def checksum(tensor: Tensor) -> str:
    """dtype, shape, and a multilinear hash (Carter and Wegman 1979, Universal classes of hash functions): the bits of
    element i times an odd number mixed from i + 1 as in splitmix64 (Steele, Lea, Flood 2014), summed modulo 2^64.
    Shifts are of signed numbers; -0 counts as 0.
    """
    flat = (tensor.reshape(-1) + 0.0 if tensor.is_floating_point() else tensor.reshape(-1).long()).contiguous()
    width = flat.element_size()
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = flat.view(kinds[width]).long()
    bits = bits if width == 8 else bits % (1 << 8 * width)
    number = torch.arange(1, len(flat) + 1) * (0x9E3779B97F4A7C15 - 2**64)
    number = (number ^ number >> 30) * (0xBF58476D1CE4E5B9 - 2**64)
    total = int((bits * (number ^ number >> 27 | 1)).sum()) % 2**64
    shape = list(tensor.shape) or [1]
    return f"{str(tensor.dtype).removeprefix('torch.')}{shape}:{total:016x}"
