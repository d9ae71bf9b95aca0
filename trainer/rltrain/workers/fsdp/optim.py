"""One optimizer step: clip, skip what is not finite, AdamW, the schedule of the learning rate."""

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


@dataclass(frozen=True)
class StepResult:
    """What became of one step. Equal on all ranks."""

    grad_norm: float
    """L2 norm over all parameters and ranks, before clipping; may be NaN or infinite."""
    applied: bool
    """False: the gradient was not finite, and parameters, optimizer and schedule are as before."""
    lr: float
    """The learning rate of this step."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate over optimizer steps: linear warm-up, then `kind` down to `min_lr_ratio` of the peak."""

    peak: float
    warmup_steps: int
    total_steps: int
    kind: str
    min_lr_ratio: float

    @classmethod
    def of(cls, config: OptimConfig, total_steps: int) -> Schedule:
        """The schedule that CONFIG asks for over TOTAL_STEPS optimizer steps."""
        warmup = config.lr_warmup_steps
        if warmup < 0:
            warmup = round(config.lr_warmup_steps_ratio * total_steps)
        return cls(config.lr, warmup, total_steps, config.lr_scheduler_type, config.min_lr_ratio)

    def lr(self, step: int) -> float:
        """The learning rate of STEP, which counts from 0. Warm-up ends at its peak, and wastes no step at 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return self.peak
        done = min((step - self.warmup_steps) / max(self.total_steps - self.warmup_steps, 1), 1.0)
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

    def step(self, device: str) -> StepResult:
        """Use up the gradients (collective; DEVICE: where ranks compare notes)."""
        grads = [parameter.grad for parameter in self._parameters() if parameter.grad is not None]
        norm, lr = grad_norm(grads, device), self.schedule.lr(self.num_steps)
        applied = math.isfinite(norm)
        if applied:
            self._clip(grads, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            self.num_steps += 1
        else:
            self.num_skipped += 1
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(norm, applied, lr)

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
    """L2 norm of GRADS over all ranks, equal on every one (collective). Squares are summed in float64."""
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for grad in grads:
        squares += torch.linalg.vector_norm(local(grad), dtype=torch.float64).square().to(device)
    dist.all_reduce(squares)
    return float(squares.sqrt())


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of TENSOR, or TENSOR itself where it is not sharded. Shares memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
