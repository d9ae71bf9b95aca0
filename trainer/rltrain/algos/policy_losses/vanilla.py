"""PPO's clipped loss (Schulman et al. 2017, arXiv:1707.06347), with clip-higher and dual clip."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.policy_losses.inputs import PolicyLossInputs


def vanilla(inputs: PolicyLossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each token `[B, R]`, and sums over tokens of `pg_clipfrac`, `pg_clipfrac_lower`, `ppo_kl`.

    ratio = pi / pi_old;  L = max(-A ratio, -A clip(ratio, 1 - low, 1 + high)). Two bounds of their own are DAPO's
    clip-higher (arXiv:2503.14476). Where A < 0 dual clip (Ye et al. 2019, arXiv:1912.09729) holds L at or below -A c:
    one token whose probability rose far cannot rule the batch.
    """
    inputs = inputs.cleaned()
    log_ratio, advantages = inputs.log_ratio(), inputs.advantages
    ratio = log_ratio.exp()
    plain, held = -advantages * ratio, -advantages * inputs.clip(ratio)
    terms = torch.maximum(plain, held)
    clipped_lower = torch.zeros_like(inputs.response_mask)
    if inputs.clip_ratio_c is not None:
        bound = -advantages * inputs.clip_ratio_c
        clipped_lower = (advantages < 0) & (terms > bound)
        terms = torch.where(advantages < 0, torch.minimum(terms, bound), terms)
    return inputs.weighted(terms), inputs.metric_sums(log_ratio, held > plain, clipped_lower)
