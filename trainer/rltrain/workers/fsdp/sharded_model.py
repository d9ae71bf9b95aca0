"""One model on this rank, with what trains it, and where its memory is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from rltrain.config.schema import FsdpConfig
from rltrain.core.tensors import empty_cache
from rltrain.workers.fsdp.build import reshard
from rltrain.workers.fsdp.comm_timing import TimedReduceScatter
from rltrain.workers.fsdp.fused_head import FusedHead
from rltrain.workers.fsdp.optim import Stepper, local
from rltrain.workers.fsdp.watch import UNWATCHED, Watch

HOST = "cpu"


@dataclass
class ShardedModel:
    """Actor, reference, critic or reward model: a sharded model on this rank.

    With `param_offload` and `optimizer_offload` it is on the host, but for its uses (`in_use`).
    """

    name: str
    model: nn.Module
    fsdp: FsdpConfig
    device: str
    stepper: Stepper | None = None
    """None: the role does not train."""
    gradient_comm: TimedReduceScatter | None = None
    watch: Watch = UNWATCHED
    """Is told of what updates do."""
    head: FusedHead | None = None
    """Reads a policy's log-probabilities by blocks; None: its logits exist whole."""
    fused: frozenset[str] = frozenset()
    """Parts of its layers that are one kernel each (`fused_layers`)."""

    def trainer(self) -> Stepper:
        """What trains this role."""
        assert self.stepper is not None, f"{self.name} does not train"
        return self.stepper

    @contextmanager
    def in_use(self, training: bool = False) -> Generator[None]:
        """Hold the parameters on the device, and what the optimizer keeps if TRAINING; at the end `leave`.

        An error leaves everything where it is: a device that has failed would raise again while it is cleared, and
        hide what came first. The next use begins by bringing back whatever is not there.
        """
        if self.fsdp.param_offload and not self.fsdp.offload_policy:
            self.model.to(self.device)
        if training:
            self._move_optimizer(self.device)
        yield
        self.leave()
        if training and self.device.startswith("cuda"):
            # The gradients are gone. What they lay in is in pieces between the optimizer's state, and of no use to the
            # next role: a critic's would be held beside the actor's.
            empty_cache()

    def leave(self) -> None:
        """Free gathered parameters, and move to the host what the config keeps there. Not collective."""
        reshard(self.model)
        if self.fsdp.param_offload and not self.fsdp.offload_policy:
            self.model.to(HOST)
        if self.fsdp.optimizer_offload:
            self._move_optimizer(HOST)

    def park(self) -> int:
        """Move everything to the host, whatever the config keeps there; bytes that are on it now. Not collective."""
        reshard(self.model)
        if self.fsdp.offload_policy:
            return 0
        self.model.to(HOST)
        self._move_optimizer(HOST)
        tensors = [local(tensor) for tensor in (*self.model.parameters(), *self.model.buffers())]
        if self.stepper is not None:
            tensors += [local(each) for state in self.stepper.optimizer.state.values() for each in state.values()]
        return sum(tensor.nbytes for tensor in tensors)

    def unpark(self) -> None:
        """Undo `park`: what the config keeps on the host stays there. Not collective."""
        if self.fsdp.offload_policy:
            return
        if not self.fsdp.param_offload:
            self.model.to(self.device)
        if not self.fsdp.optimizer_offload:
            self._move_optimizer(self.device)

    def _move_optimizer(self, device: str) -> None:
        if self.stepper is None or self.fsdp.offload_policy:
            return
        for state in self.stepper.optimizer.state.values():
            for key, value in cast("dict[str, Tensor]", state).items():
                state[key] = value.to(device)
