"""REINFORCE++ (Hu et al. 2025, arXiv:2501.03262)."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.advantages.inputs import AdvantageInputs
from rltrain.algos.masked import whiten


def reinforce_plus_plus(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Advantages (the returns, whitened over all tokens of the batch) and returns, each `[B, R]`.

    return_t = r_t + gamma return_{t+1};  A = (return - mean) / std. Masked positions within a response are skipped.
    """
    rewards, mask = inputs.token_level_rewards, inputs.response_mask
    returns = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        running = torch.where(mask[:, t], rewards[:, t] + inputs.gamma * running, running)
        returns[:, t] = running
    return whiten(returns, mask), returns
