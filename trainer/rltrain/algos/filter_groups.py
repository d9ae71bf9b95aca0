"""DAPO's dynamic sampling: groups that teach nothing are dropped (Yu et al. 2025, arXiv:2503.14476, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.groups import group_slots


def filter_groups(metric: Tensor, group_ids: Tensor) -> list[int]:
    """Rows to keep, in their order: those of groups whose METRIC `[B]` is not the same for all. GROUP_IDS int64 `[B]`.

    Equal rewards have zero group advantage and so no gradient. Compared by largest and smallest, not by the standard
    deviation, which rounding makes positive for equal numbers. A group of one is kept: it has nothing to be equal to.
    """
    slots = group_slots(group_ids)
    highest, lowest = (metric.scatter_reduce(0, slots, metric, kind, include_self=False) for kind in ("amax", "amin"))
    sizes = torch.bincount(slots, minlength=len(metric))
    keep = (highest != lowest) | (sizes == 1)
    return [row for row, slot in enumerate(slots) if bool(keep[slot])]
