"""The loop that every update shares: mini batches, micro batches, one optimizer step each."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from rltrain.algos.aggregation import AggNormalizer
from rltrain.core import work
from rltrain.workers.fsdp.metrics import Sums, by_rank, largest, total
from rltrain.workers.fsdp.micro import MicroSize, MiniBatch, Shard, micro_batches
from rltrain.workers.fsdp.optim import StepResult
from rltrain.workers.fsdp.sharded_model import ShardedModel

LossFunction = Callable[[Shard, AggNormalizer], tuple[Tensor, dict[str, Tensor]]]
"""(micro batch, counts) -> its share of the mini batch's loss, and sums for the metrics."""


def run_updates(
    sharded: ShardedModel, minis: Sequence[MiniBatch], size: MicroSize, data_ranks: int, loss_function: LossFunction
) -> tuple[dict[str, float], list[StepResult]]:
    """Take one optimizer step for each of MINIS, all at one learning rate (collective).

    FSDP averages gradients over ranks, and each rank's loss is a share of one sum: hence the factor `data_ranks`.

    Returns:
        Sums of the loss function's metrics over everything, and what became of each step: equal on all ranks.
    """
    sums = Sums(sharded.device)
    sharded.model.train()
    with sharded.in_use(training=True):
        results = _steps(sharded, minis, size, data_ranks, loss_function, sums)
    sharded.trainer().end_update()
    sharded.model.eval()
    return sums.over_ranks(), results


def _steps(
    sharded: ShardedModel,
    minis: Sequence[MiniBatch],
    size: MicroSize,
    data_ranks: int,
    loss_function: LossFunction,
    sums: Sums,
) -> list[StepResult]:
    results: list[StepResult] = []
    done, count, watch = 0, sum(mini.micro_batches for mini in minis), sharded.watch
    for mini in minis:
        watch.begin_mini(mini.rows)
        for group, rows in micro_batches(mini.shard, size, mini.micro_batches, sharded.device):
            work.report(done, count)
            done += 1
            watch.begin_micro(group)
            loss, found = loss_function(rows, mini.normalizer)
            (loss * data_ranks).backward()
            sums.add(found)
            watch.end_micro(found)
        watch.reduced()
        results.append(sharded.trainer().step(sharded.device))
        watch.end_mini(results[-1])
    return results


def step_metrics(prefix: str, results: Sequence[StepResult]) -> dict[str, float]:
    """`grad_norm` (mean of the finite ones; NaN where none is), `lr`, and counts of steps."""
    finite = [result.grad_norm for result in results if result.applied]
    return {
        f"{prefix}/grad_norm": sum(finite) / len(finite) if finite else math.nan,
        f"{prefix}/lr": results[-1].lr,
        f"{prefix}/optimizer_steps": float(len(finite)),
        f"{prefix}/skipped_steps": float(len(results) - len(finite)),
    }


def gradient_traffic(prefix: str, sharded: ShardedModel) -> dict[str, float]:
    """Norms of the ranks' own gradients, and by how much their reduction is off (collective); empty for one rank.

    `grad_norm_rank_min` and `grad_norm_rank_max` are of what each rank sent over all micro batches,
    `grad_norm_rank_of_min` is the rank that sent the least. The elements that
    all ranks received add up to those that they sent: `grad_reduce_error` is the difference, over the mean norm.
    """
    assert sharded.gradient_comm is not None
    traffic = sharded.gradient_comm.take_traffic()
    if traffic is None:
        return {}
    norms = by_rank(traffic.norm, sharded.device)
    error = abs(total(traffic.due - traffic.got, sharded.device))
    mean = sum(norms) / len(norms)
    return {
        f"{prefix}/grad_norm_rank_min": min(norms),
        f"{prefix}/grad_norm_rank_max": max(norms),
        f"{prefix}/grad_norm_rank_of_min": float(norms.index(min(norms))),
        f"{prefix}/grad_reduce_error": error / mean if mean else 0.0,
    }


def gradient_seconds(sharded: ShardedModel) -> float:
    """Time in reduce-scatters of gradients since last asked: the slowest rank's (collective)."""
    assert sharded.gradient_comm is not None
    return largest(sharded.gradient_comm.take_s(), sharded.device)
