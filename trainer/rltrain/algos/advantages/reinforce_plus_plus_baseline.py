"""REINFORCE++-baseline: several responses to each prompt (Hu et al. 2025, arXiv:2501.03262)."""

from __future__ import annotations

from torch import Tensor

from rltrain.algos.advantages.inputs import AdvantageInputs
from rltrain.algos.groups import Groups
from rltrain.algos.masked import whiten


def reinforce_plus_plus_baseline(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Advantages `[B, R]`; returns are the same tensor.

    A = whiten(r_i - mean(r) over the responses to the prompt), whitened over all tokens of the batch, so that a long
    response weighs as its tokens do. A group of one is centred to 0 (verl passes its raw reward on) and then whitened.
    """
    centred = Groups.of(inputs.group_ids, inputs.present).centred(inputs.scores)
    advantages = whiten(inputs.spread(centred), inputs.response_mask)
    return advantages, advantages
