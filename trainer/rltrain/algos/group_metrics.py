"""Numbers about the groups of answers to one prompt: do their rewards differ, do they themselves."""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.groups import group_slots
from rltrain.algos.masked import zero_outside


def reward_metrics(scores: Tensor, group_ids: Tensor) -> dict[str, float]:
    """`train/zero_advantage_groups`: the share of groups all of whose answers earn the same.

    SCORES float `[B]`, GROUP_IDS int64 `[B]`. Groups of one count nowhere; empty where there is no other.
    """
    slots = group_slots(group_ids)
    sizes = torch.bincount(slots)
    low, high = (
        torch.zeros(len(sizes), dtype=scores.dtype).scatter_reduce(0, slots, scores, kind, include_self=False)
        for kind in ("amin", "amax")
    )
    several = sizes > 1
    if not bool(several.any()):
        return {}
    return {"train/zero_advantage_groups": float((low == high)[several].double().mean())}


def duplicate_metrics(
    responses: Tensor, mask: Tensor, group_ids: Tensor, rollout_log_probs: Tensor | None
) -> dict[str, float]:
    """How many pairs of answers to one prompt are the same, and how many the policy leads to expect.

    RESPONSES int64, MASK bool, ROLLOUT_LOG_PROBS float, all `[B, R]`; GROUP_IDS int64 `[B]`. An answer drawn with
    probability p is drawn again by another sample with probability p: the mean of p over the answers estimates the
    share of equal pairs without bias. Far more of them than that: samples share a random stream. Empty without groups.
    """
    slots = group_slots(group_ids)
    sizes = torch.bincount(slots)
    pairs = float((sizes * (sizes - 1)).sum())
    if not pairs:
        return {}
    marked = torch.where(mask, responses, torch.full_like(responses, -1))
    _, same = torch.unique(torch.cat([slots[:, None], marked], dim=1), dim=0, return_counts=True)
    metrics = {"response/duplicate_ratio": float((same * (same - 1)).sum()) / pairs}
    if rollout_log_probs is not None:
        chances = zero_outside(rollout_log_probs.double(), mask).sum(dim=-1).exp()[sizes[slots] > 1]
        metrics["response/duplicate_ratio_expected"] = float(chances.mean())
    return metrics
