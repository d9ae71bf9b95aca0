"""The loop that every update shares: mini batches, micro batches, one optimizer step each."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from trainer import work
from trainer.algos.aggregation import AggNormalizer
from trainer.fsdp.metrics import Sums, largest
from trainer.fsdp.micro import MicroSize, MiniBatch, Shard, micro_batches
from trainer.fsdp.optim import StepResult
from trainer.fsdp.role import Role

LossFunction = Callable[[Shard, AggNormalizer], tuple[Tensor, dict[str, Tensor]]]
"""(micro batch, counts) -> its share of the mini batch's loss, and sums for the metrics."""


def run_updates(
    role: Role, minis: Sequence[MiniBatch], size: MicroSize, world_size: int, loss_function: LossFunction
) -> tuple[dict[str, float], list[StepResult]]:
    """Take one optimizer step for each of MINIS (collective).

    FSDP averages gradients over ranks, and each rank's loss is a share of one sum: hence the factor `world_size`.

    Returns:
        Sums of the loss function's metrics over everything, and what became of each step: equal on all ranks.
    """
    sums = Sums(role.device)
    role.model.train()
    with role.in_use(training=True):
        results = _steps(role, minis, size, world_size, loss_function, sums)
    role.model.eval()
    return sums.over_ranks(), results


def _steps(
    role: Role, minis: Sequence[MiniBatch], size: MicroSize, world_size: int, loss_function: LossFunction, sums: Sums
) -> list[StepResult]:
    results: list[StepResult] = []
    done, total = 0, sum(mini.micro_batches for mini in minis)
    for mini in minis:
        for _, rows in micro_batches(mini.shard, size, mini.micro_batches, role.device):
            work.report(done, total)
            done += 1
            loss, found = loss_function(rows, mini.normalizer)
            (loss * world_size).backward()
            sums.add(found)
        results.append(role.trainer().step(role.device))
    return results


def step_metrics(prefix: str, results: Sequence[StepResult]) -> dict[str, float]:
    """`grad_norm` (mean of the finite ones; NaN where none is), `lr` (the last), and counts of steps."""
    finite = [result.grad_norm for result in results if result.applied]
    return {
        f"{prefix}/grad_norm": sum(finite) / len(finite) if finite else math.nan,
        f"{prefix}/lr": results[-1].lr,
        f"{prefix}/optimizer_steps": float(len(finite)),
        f"{prefix}/skipped_steps": float(len(results) - len(finite)),
    }


def gradient_seconds(role: Role) -> float:
    """Time in reduce-scatters of gradients since last asked: the slowest rank's (collective)."""
    assert role.gradient_comm is not None
    return largest(role.gradient_comm.take_s(), role.device)
