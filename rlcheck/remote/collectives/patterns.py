"""Test values that differ by rank and place and are exact in their dtype, so that a wrong result tells whose it is."""

from __future__ import annotations

from typing import Any

EXACT = {
    "float32": 1 << 24,
    "bfloat16": 1 << 8,
    "float16": 1 << 11,
    "int64": 1 << 40,
    "int32": (1 << 31) - 1,
    "uint8": (1 << 8) - 1,
}
"""Up to here a dtype holds every whole number, so that sums do not depend on their order."""
PERIOD = 1021
"""A prime: a chunk that lands in a wrong place shows."""
_STEPS = 7


def values(torch: Any, rank: int, dtype: str) -> Any:
    """One period of what rank `rank` sends where values are only moved or compared: int64 on the CPU."""
    return _noise(torch, rank) % min(EXACT[dtype], 1 << 20)


def terms(torch: Any, rank: int, size: int, dtype: str) -> Any:
    """One period of what rank `rank` of `size` adds to a sum: thinned out so that no sum leaves the exact range."""
    stride = -(-size * _STEPS // EXACT[dtype])
    place = torch.arange(PERIOD, dtype=torch.int64)
    takes_part = ((place + rank) % stride == 0).to(torch.int64)
    return (_noise(torch, rank) % _STEPS + 1) * takes_part


def stretch(torch: Any, period: Any, length: int, start: int = 0) -> Any:
    """`length` elements of the endlessly repeated `period`, from `start` on."""
    return period[torch.arange(start, start + length) % PERIOD]


def _noise(torch: Any, rank: int) -> Any:
    place = torch.arange(PERIOD, dtype=torch.int64)
    mixed = place * 2654435761 + (rank + 1) * (place + 7) * 40503
    return (mixed ^ (mixed >> 13)) & 0x7FFFFFFF
