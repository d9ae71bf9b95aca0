"""Generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438)."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.advantages.inputs import AdvantageInputs
from rltrain.algos.masked import whiten


def gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Advantages (whitened over all tokens of the batch) and returns, each `[B, R]`.

    delta_t = r_t + gamma V_{t+1} - V_t;  A_t = delta_t + gamma lam A_{t+1};  return_t = A_t + V_t (before whitening).
    After the last token V and A are 0: a response cut at the length limit is taken as ended. Masked positions within a
    response are skipped: the next token is the next one under the mask.

    Raises:
        ValueError: no values.
    """
    if inputs.values is None:
        raise ValueError("gae needs values, which the critic computes")
    # Time first: a step then reads and writes neighbours.
    rewards, values, mask = (
        each.t().contiguous() for each in (inputs.token_level_rewards, inputs.values, inputs.response_mask)
    )
    next_value = next_advantage = torch.zeros_like(rewards[0])
    advantages = torch.zeros_like(rewards)
    discount = inputs.gamma * inputs.lam
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + inputs.gamma * next_value - values[t]
        advantages[t] = delta + discount * next_advantage
        next_value = torch.where(mask[t], values[t], next_value)
        next_advantage = torch.where(mask[t], advantages[t], next_advantage)
    found = advantages.t().contiguous()
    return whiten(found, inputs.response_mask), found + inputs.values
