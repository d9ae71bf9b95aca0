"""The critic's loss, with the clipping of PPO's first implementation (Engstrom et al. 2020, arXiv:2005.12729)."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.masked import masked_sum, zero_outside


def value_loss_terms(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, cliprange_value: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each token `[B, R]` before `aggregate`, and sums over tokens of `vf_clipfrac` and `vpred_mean`.

    L = 0.5 max((V - G)^2, (clip(V, V_old - c, V_old + c) - G)^2), G the return. All arguments `[B, R]`, mask bool.
    """
    values, old_values, returns = (zero_outside(each, mask) for each in (values, old_values, returns))
    held = torch.clamp(values, old_values - cliprange_value, old_values + cliprange_value)
    plain_error, held_error = (values - returns).square(), (held - returns).square()
    sums = {
        "vf_clipfrac": masked_sum((held_error > plain_error).to(values.dtype), mask),
        "vpred_mean": masked_sum(values.detach(), mask),
    }
    return zero_outside(0.5 * torch.maximum(plain_error, held_error), mask), sums
