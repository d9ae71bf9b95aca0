"""One optimizer step: clip, skip what is not finite, AdamW; and the learning rate, one for each training iteration."""

# Torch and transformers are typed in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rltrain.config.schema import OptimConfig
from rltrain.workers.fsdp.comm_timing import together
from rltrain.workers.fsdp.mesh import copies


@dataclass(frozen=True)
class StepResult:
    """What became of one step. Equal on all ranks."""

    grad_norm: float
    """L2 norm over all parameters and ranks, before clipping; may be NaN or infinite."""
    applied: bool
    """False: the gradient was not finite, and parameters and optimizer are as before."""
    lr: float
    """The learning rate of this step."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate over updates: linear warm-up from 0, then `kind` down to `min_lr_ratio` of the peak.

    An update is what one training iteration does to a role: all its mini batches, all epochs. As in verl 0.9
    (`get_cosine_schedule_with_warmup` in its utils/torch_functional.py; one step an update: workers/engine_workers.py).
    """

    peak: float
    warmup_updates: int
    total_updates: int
    kind: str
    min_lr_ratio: float

    @classmethod
    def of(cls, config: OptimConfig, total_updates: int) -> Schedule:
        """The schedule that CONFIG asks for over TOTAL_UPDATES."""
        warmup = config.lr_warmup_steps
        if warmup <= 0:
            warmup = int(config.lr_warmup_steps_ratio * total_updates)
        return cls(config.lr, warmup, total_updates, config.lr_scheduler_type, config.min_lr_ratio)

    def lr(self, update: int) -> float:
        """The learning rate of UPDATE, which counts from 0: that of the first is 0 where there is a warm-up."""
        if update < self.warmup_updates:
            return self.peak * update / self.warmup_updates
        if self.kind == "constant":
            return self.peak
        done = min((update - self.warmup_updates) / max(self.total_updates - self.warmup_updates, 1), 1.0)
        left = 1.0 - done if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.peak * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * left)


class Stepper:
    """AdamW over a sharded model's parameters, with its schedule and its counts."""

    def __init__(self, model: nn.Module, config: OptimConfig, max_norm: float | None, schedule: Schedule) -> None:
        """Optimise MODEL's parameters. MAX_NORM: longest gradient; None: any."""
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=schedule.peak,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.schedule = schedule
        self.max_norm = max_norm
        self.num_steps = 0
        self.num_skipped = 0
        self.num_updates = 0
        """Finished ones; where the schedule stands."""
        self.not_finite: tuple[int, ...] = ()
        """Numbers of the parameters whose gradient on this rank was not finite when a step was last skipped."""

    def step(self, device: str) -> StepResult:
        """Use up the gradients (collective; DEVICE: where ranks compare notes)."""
        grads = [parameter.grad for parameter in self._parameters() if parameter.grad is not None]
        norm, lr = grad_norm(grads, device), self.schedule.lr(self.num_updates)
        applied = math.isfinite(norm)
        if applied:
            self._clip(grads, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            self.num_steps += 1
        else:
            self.num_skipped += 1
            self.not_finite = tuple(
                number
                for number, parameter in enumerate(self._parameters())
                if parameter.grad is not None and not bool(local(parameter.grad).isfinite().all())
            )
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(norm, applied, lr)

    def end_update(self) -> None:
        """The update is finished, whether its steps were applied or not: the schedule goes on."""
        self.num_updates += 1

    def remembered_steps(self) -> int:
        """Steps that the moments of the optimizer's state were made of, by its own count; 0: it has no state."""
        states = [self.optimizer.state.get(parameter, {}) for parameter in self._parameters()]
        return max((int(state["step"]) for state in states if "step" in state), default=0)

    def _parameters(self) -> Iterable[Tensor]:
        return (parameter for group in self.optimizer.param_groups for parameter in group["params"])

    def _clip(self, grads: list[Tensor], norm: float) -> None:
        if self.max_norm is None or norm <= self.max_norm:
            return
        for grad in grads:
            local(grad).mul_(self.max_norm / norm)


def grad_norm(grads: Iterable[Tensor], device: str) -> float:
    """L2 norm of GRADS over all ranks, equal on every one (collective). Squares are summed in float64.

    Each number counts once, of however many ranks hold it. The sum is over all ranks and not over those of one copy
    alone: ranks that differed by its rounding would clip differently, and their copies would drift apart.
    """
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for grad in grads:
        squares += (torch.linalg.vector_norm(local(grad), dtype=torch.float64).square() / copies(grad)).to(device)
    with together(squares):
        dist.all_reduce(squares)
    return float(squares.sqrt())


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of TENSOR, or TENSOR itself where it is not sharded. Shares memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
