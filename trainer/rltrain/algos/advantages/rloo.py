"""REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740)."""

from __future__ import annotations

from torch import Tensor

from rltrain.algos.advantages.inputs import AdvantageInputs
from rltrain.algos.groups import Groups


def rloo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Advantages `[B, R]`, the same for all tokens of a response; returns are the same tensor.

    A_i = r_i - mean of the other responses' rewards = n / (n - 1) (r_i - mean(r)). A group of one has no others: 0
    (verl passes its raw reward on, with no baseline).
    """
    groups, scores = Groups.of(inputs.group_ids, inputs.present), inputs.scores
    sizes = groups.sizes(scores)
    spread = inputs.spread(groups.centred(scores) * sizes / (sizes - 1).clamp(min=1))
    return spread, spread
