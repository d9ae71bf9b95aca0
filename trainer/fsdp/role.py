"""One model on this rank, with what trains it, and where its memory lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from trainer.config.schema import FsdpConfig
from trainer.fsdp.build import reshard
from trainer.fsdp.comm_timing import TimedReduceScatter
from trainer.fsdp.optim import Stepper


@dataclass
class Role:
    """Actor, reference, critic or reward model: a sharded model on this rank."""

    name: str
    model: nn.Module
    fsdp: FsdpConfig
    device: str
    stepper: Stepper | None = None
    """None: the role does not train."""
    gradient_comm: TimedReduceScatter | None = None

    def trainer(self) -> Stepper:
        """What trains this role."""
        assert self.stepper is not None, f"{self.name} does not train"
        return self.stepper

    def offload(self) -> None:
        """Move to the host what the config says may leave the device while this role is idle."""
        reshard(self.model)
        if self.fsdp.param_offload and not self.fsdp.offload_policy:
            self.model.to("cpu")
        if self.fsdp.optimizer_offload:
            self._move_optimizer("cpu")
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def onload(self) -> None:
        """Undo `offload`. Harmless where nothing was moved."""
        if self.fsdp.offload_policy:
            return
        self.model.to(self.device)
        self._move_optimizer(self.device)

    def _move_optimizer(self, device: str) -> None:
        if self.stepper is None:
            return
        for state in self.stepper.optimizer.state.values():
            for key, value in cast("dict[str, Tensor]", state).items():
                state[key] = value.to(device)
