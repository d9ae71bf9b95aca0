"""Passes without gradient over a rank's share of the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rltrain.core import work
from rltrain.workers.fsdp.forward import Policy
from rltrain.workers.fsdp.metrics import largest
from rltrain.workers.fsdp.micro import MicroSize, Shard, cut, micro_batches, row_lengths
from rltrain.workers.fsdp.sharded_model import ShardedModel

Reader = Callable[[Shard], dict[str, Tensor]]
"""A micro batch -> fields [b, r]."""


def infer(
    sharded: ShardedModel, shard: Shard, size: MicroSize, reader: Reader, names: tuple[str, ...]
) -> dict[str, Tensor]:
    """Read all rows of SHARD (collective: every rank makes as many passes as the one that needs most).

    Args:
        role: whose model reads.
        shard: this rank's rows; may be none.
        size: of a micro batch.
        reader: gives the fields NAMES for a micro batch.
        names: of the fields.

    Returns:
        NAMES as float32 [B, R] on the host, 0 where there is no token.
    """
    result = {name: torch.zeros(shard["response_mask"].shape) for name in names}
    count = int(largest(float(len(cut(row_lengths(shard), size))), sharded.device))
    sharded.model.eval()
    with sharded.in_use(), torch.no_grad():
        for done, (rows, micro) in enumerate(micro_batches(shard, size, count, sharded.device)):
            work.report(done, count)
            found = reader(micro)
            if rows:
                for name in names:
                    result[name][rows, : found[name].shape[1]] = found[name].float().cpu()
    return result


def alone(sharded: ShardedModel, policy: Policy, shard: Shard) -> Tensor:
    """Log-probabilities of SHARD's rows, each row in a pass of its own (collective): float32 [B, R] on the host."""
    name = "log_probs"
    return infer(sharded, shard, MicroSize(1, None), lambda rows: {name: policy(rows, "none").log_probs}, (name,))[name]


def recompute(sharded: ShardedModel, policy: Policy, shard: Shard) -> dict[str, float]:
    """Read the log-probabilities of SHARD's rows again, each row alone (collective), and compare.

    A fault in packing, masks or micro batches shows here while no curve shows it. SHARD: a few rows that have
    `old_log_probs` of the same weights.

    Returns:
        `max_abs_diff` of a token's log-probability over all ranks, and `num_tokens` compared on this rank.
    """
    mask = shard["response_mask"].bool()
    gaps = (alone(sharded, policy, shard) - shard["old_log_probs"].cpu()).abs()[mask.cpu()]
    worst = float(gaps.max()) if gaps.numel() else 0.0
    return {"max_abs_diff": largest(worst, sharded.device), "num_tokens": float(mask.sum())}
