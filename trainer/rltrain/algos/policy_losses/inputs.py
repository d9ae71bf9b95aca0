"""What a policy loss is given, and what all of them share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rltrain.algos.masked import masked_sum, zero_outside

LOG_RATIO_BOUND = 20.0
"""Log ratios are held within ± this, as in verl, so that exp stays finite; beyond it a token has no gradient."""


@dataclass(frozen=True)
class PolicyLossInputs:
    """One micro batch, whole rows. Only `log_probs` carries a gradient."""

    log_probs: Tensor
    """`[B, R]`: log-probabilities of the sampled tokens under the policy being trained."""
    old_log_probs: Tensor
    """`[B, R]`: the same under the policy before the first update of this step."""
    advantages: Tensor
    """`[B, R]`"""
    response_mask: Tensor
    """bool `[B, R]`"""
    rollout_is_weights: Tensor | None
    """`[B, R]`: weight of each token's loss, from `rollout_correction`; None: 1."""
    clip_ratio_low: float
    clip_ratio_high: float
    clip_ratio_c: float | None
    """Dual clip's bound for negative advantages, above 1; None: none."""

    def cleaned(self) -> PolicyLossInputs:
        """These inputs with zeros outside the mask."""
        weights = self.rollout_is_weights
        return replace(
            self,
            log_probs=zero_outside(self.log_probs, self.response_mask),
            old_log_probs=zero_outside(self.old_log_probs, self.response_mask),
            advantages=zero_outside(self.advantages, self.response_mask),
            rollout_is_weights=None if weights is None else zero_outside(weights, self.response_mask).detach(),
        )

    def log_ratio(self) -> Tensor:
        """log pi(token) - log pi_old(token), bounded, `[B, R]`."""
        return (self.log_probs - self.old_log_probs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)

    def clip(self, ratio: Tensor) -> Tensor:
        """RATIO held within [1 - clip_ratio_low, 1 + clip_ratio_high]."""
        return ratio.clamp(1 - self.clip_ratio_low, 1 + self.clip_ratio_high)

    def weighted(self, terms: Tensor) -> Tensor:
        """TERMS `[B, R]` times the rollout's importance weights, 0 outside the mask."""
        weights = self.rollout_is_weights
        return zero_outside(terms if weights is None else terms * weights, self.response_mask)

    def metric_sums(self, log_ratio: Tensor, clipped: Tensor, clipped_lower: Tensor | None = None) -> dict[str, Tensor]:
        """Sums over tokens: of bool CLIPPED and CLIPPED_LOWER `[B, R]`, and of -LOG_RATIO: KL(old, new), estimated."""
        lower = torch.zeros_like(clipped) if clipped_lower is None else clipped_lower
        sums = {
            "pg_clipfrac": clipped.to(log_ratio.dtype),
            "ppo_kl": -log_ratio,
            "pg_clipfrac_lower": lower.to(log_ratio.dtype),
        }
        return {name: masked_sum(values.detach(), self.response_mask) for name, values in sums.items()}
