"""Numbers about the groups of answers to one prompt: do their rewards differ, do they themselves."""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math

import torch
from torch import Tensor

from rltrain.algos.groups import group_slots
from rltrain.algos.masked import zero_outside
from rltrain.algos.metrics import correlation


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
    responses: Tensor, mask: Tensor, group_ids: Tensor, engine: tuple[Tensor, Tensor] | None
) -> dict[str, float]:
    """How many pairs of answers to one prompt are the same, and how many the policy leads to expect.

    RESPONSES int, MASK bool, both `[B, R]`; GROUP_IDS int64 `[B]`; ENGINE: the engine's log-probabilities and the bool
    mask of those that it was asked for, both `[B, R]`. An answer drawn with
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
    if engine is not None:
        log_probs, asked = engine
        rows = (sizes[slots] > 1) & (asked.any(dim=-1) | ~mask.any(dim=-1))
        if bool(rows.any()):
            chances = zero_outside(log_probs.double(), mask).sum(dim=-1).exp()[rows]
            metrics["response/duplicate_ratio_expected"] = float(chances.mean())
    return metrics


def credit_metrics(scores: Tensor, advantages: Tensor, mask: Tensor, group_ids: Tensor) -> dict[str, float]:
    """`critic/score_advantage_corr`: does what earns more have the larger advantage.

    The correlation of SCORES float `[B]` with the mean of each row's ADVANTAGES float `[B, R]` over MASK bool `[B, R]`,
    both less the mean of their group where groups (GROUP_IDS int64 `[B]`) have several members. Left out where either
    is constant.
    """
    lengths = mask.sum(dim=-1)
    rows = lengths > 0
    means = zero_outside(advantages.double(), mask).sum(dim=-1)[rows] / lengths[rows]
    slots = group_slots(group_ids[rows])
    found = correlation(_centred(scores[rows].double(), slots), _centred(means, slots))
    return {"critic/score_advantage_corr": found} if math.isfinite(found) else {}


def _centred(values: Tensor, slots: Tensor) -> Tensor:
    """VALUES less the mean of their group; as they are where all groups are of one."""
    sizes = torch.bincount(slots)
    if int(sizes.max() if len(sizes) else 0) < 2:
        return values
    return values - (torch.zeros(len(sizes), dtype=values.dtype).scatter_add(0, slots, values) / sizes)[slots]
