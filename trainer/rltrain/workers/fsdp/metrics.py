"""Metrics that are sums over tokens, mini batches and ranks."""

# Torch and transformers are typed in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from rltrain.core.tensors import floats
from rltrain.workers.fsdp.comm_timing import together


class Sums:
    """Named sums, kept on the device until all ranks add them up: no synchronisation for each micro batch."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._sums: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add this rank's VALUES, scalars."""
        for name, value in values.items():
            value = value.detach().to(torch.float64)
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def here(self, name: str) -> float:
        """The sum of NAME on this rank alone; 0 where nothing was added."""
        return float(self._sums[name]) if name in self._sums else 0.0

    def over_ranks(self) -> dict[str, float]:
        """The sums over all ranks, equal on every one (collective: all ranks must have added the same names)."""
        if not self._sums:
            return {}
        names = sorted(self._sums)
        stacked = torch.stack([self._sums[name].to(self._device) for name in names])
        with together(stacked):
            dist.all_reduce(stacked)
        return dict(zip(names, floats(stacked), strict=True))


def by_rank(value: float, device: str) -> list[float]:
    """Each rank's VALUE, in order of rank (collective)."""
    values = torch.zeros(dist.get_world_size(), dtype=torch.float64, device=device)
    values[dist.get_rank()] = value
    with together(values):
        dist.all_reduce(values)
    return floats(values)


def largest(value: float, device: str) -> float:
    """The largest VALUE of any rank (collective)."""
    tensor = torch.tensor(value, dtype=torch.float64, device=device)
    with together(tensor):
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor)


def total(value: float, device: str) -> float:
    """The sum of VALUE over ranks (collective)."""
    tensor = torch.tensor(value, dtype=torch.float64, device=device)
    with together(tensor):
        dist.all_reduce(tensor)
    return float(tensor)
