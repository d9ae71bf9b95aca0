"""Thresholds and speeds of `data/slow.json`; each number there has its source."""

from __future__ import annotations

from rlcheck.facts.base import Struct
from rlcheck.tables import Threshold, table


class Speed(Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU at its peak: dense bfloat16 operations (10^12 a second), memory bandwidth (10^9 bytes a second)."""

    tflops: float
    gb_s: float
    source: str


class SlowTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    note: str
    sources: dict[str, str]
    numbers: dict[str, Threshold]
    gpus: dict[str, Speed]


def limit(name: str) -> float:
    """The threshold of this name.

    Raises:
        KeyError: there is none.
    """
    return table("slow", SlowTable).numbers[name].value


def speed_of(gpu: str) -> Speed | None:
    """The speed of the GPU of this name in `data/gpus.json`; None where it is not known."""
    return table("slow", SlowTable).gpus.get(gpu)
