"""Peaks of torch's allocator and of the device, phase by phase."""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from rlcheck.facts.memory import MeasuredPhase, Owner


@dataclass(frozen=True)
class States:
    """Bytes on the device that belong to parameters, gradients and optimizers, by role."""

    weights: dict[str, int]
    gradients: dict[str, int]
    optimizer: dict[str, int]

    def owners(self) -> list[Owner]:
        """As the prediction names them."""
        return [
            Owner(kind=kind, role=role, num_bytes=size)
            for kind, sizes in (("weights", self.weights), ("gradients", self.gradients), ("optimizer", self.optimizer))
            for role, size in sizes.items()
            if size
        ]


class Meter:
    """Peaks since the last mark, kept by phase: the largest where a phase comes more than once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.phases: dict[str, MeasuredPhase] = {}
        torch.cuda.reset_peak_memory_stats(device)

    @contextmanager
    def phase(self, name: str, states: States) -> Generator[None]:
        """Everything in here belongs to phase NAME; STATES: what was there before."""
        torch.cuda.reset_peak_memory_stats(self._device)
        yield
        self.mark(name, states)

    def mark(self, name: str, states: States) -> None:
        """What happened since the last mark belongs to phase NAME, during which STATES were on the device."""
        torch.cuda.synchronize(self._device)
        stats = torch.cuda.memory_stats(self._device)
        allocated, reserved = stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]
        free, total = torch.cuda.mem_get_info(self._device)
        context = max(total - free - stats["reserved_bytes.all.current"], 0)
        owners = states.owners()
        transient = max(allocated - sum(owner.num_bytes for owner in owners), 0)
        owners += [
            Owner(kind="activations", num_bytes=transient),
            Owner(kind="slack", num_bytes=max(reserved - allocated, 0)),
            Owner(kind="context", num_bytes=context),
        ]
        found = MeasuredPhase(
            name=name,
            peak_bytes=context + reserved,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            owners=tuple(owners),
        )
        before = self.phases.get(name)
        if before is None or before.allocated_bytes < allocated:
            self.phases[name] = found
        torch.cuda.reset_peak_memory_stats(self._device)
