"""GRPO (Shao et al. 2024, arXiv:2402.03300) and Dr.GRPO (Liu et al. 2025, arXiv:2503.20783)."""

from __future__ import annotations

from torch import Tensor

from rltrain.algos.advantages.inputs import AdvantageInputs
from rltrain.algos.groups import Groups

STD_FLOOR = 1e-6
"""Added to the standard deviation, as in verl."""


def grpo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Advantages `[B, R]`, the same for all tokens of a response; returns are the same tensor.

    A_i = (r_i - mean(r)) / (std(r) + 1e-6) over the responses to one prompt, std with n - 1 below. Without
    `norm_adv_by_std_in_grpo` (Dr.GRPO) the division is left out. Equal rewards give exactly 0. So does a group of one,
    which has nothing to compare with (verl passes its raw reward on, with no baseline).
    """
    groups, scores = Groups.of(inputs.group_ids, inputs.present), inputs.scores
    advantages = groups.centred(scores)
    if inputs.norm_adv_by_std_in_grpo:
        variance = groups.sums(advantages.square()) / (groups.sizes(scores) - 1).clamp(min=1)
        advantages = advantages / (variance.sqrt() + STD_FLOOR)
    spread = inputs.spread(advantages)
    return spread, spread
