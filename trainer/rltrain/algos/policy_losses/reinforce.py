"""REINFORCE with explicit importance weights (Williams 1992, doi:10.1007/BF00992696), for `bypass_mode`."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.policy_losses.inputs import PolicyLossInputs


def reinforce(inputs: PolicyLossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each token `[B, R]`, and sums over tokens of `pg_clipfrac` (0), `pg_clipfrac_lower` (0), `ppo_kl`.

    L = -w A log pi, w: `rollout_is_weights`, 1 where there are none. No clip: the weights alone hold what is far from
    the policy that answered. verl's `rollout_correction.loss_type=reinforce`.
    """
    inputs = inputs.cleaned()
    terms = inputs.weighted(-inputs.advantages * inputs.log_probs)
    return terms, inputs.metric_sums(inputs.log_ratio(), torch.zeros_like(inputs.response_mask))
