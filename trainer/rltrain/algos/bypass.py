"""The rollout correction of `bypass_mode`: between the engine and the policy that is being trained, at each pass.

Where the engine's log-probabilities are the old policy's, nothing is known of the actor before its update: weights and
rejection are made of each micro batch's own log-probabilities, as in verl's `compute_policy_loss_bypass_mode`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.masked import masked_sum
from rltrain.algos.rejection import kept_by
from rltrain.algos.rollout_correction import truncated
from rltrain.config.schema import RolloutCorrectionConfig
from rltrain.config.thresholds import criteria, weight_bounds


def correction_now(
    log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, config: RolloutCorrectionConfig
) -> tuple[Tensor | None, Tensor, dict[str, Tensor]]:
    """Weights of whole rows `[B, R]` (None: 1), the tokens that the loss counts, and sums over tokens for the metrics.

    As `rollout_is_weights` and `rollout_rs_kept`, with LOG_PROBS of the current policy; no gradient flows through them.
    The sums are named as `rollout_corr/*`: of weights, of ratios outside the bounds, and of rejected tokens.
    """
    with torch.no_grad():
        log_ratio, sums, weights = log_probs.detach() - rollout_log_probs, dict[str, Tensor](), None
        if config.rollout_is is not None:
            bounds = weight_bounds(config)
            weights, raw = truncated(log_ratio, mask, config.rollout_is, bounds)
            low = 1 / bounds.high if bounds.low is None else bounds.low
            sums["rollout_is_mean"] = masked_sum(weights, mask)
            sums["rollout_is_ratio_fraction_high"] = (mask & (raw > bounds.high)).sum()
            sums["rollout_is_ratio_fraction_low"] = (mask & (raw < low)).sum()
        rules = criteria(config)
        kept = mask & kept_by(rules, log_ratio, mask)
        if rules:
            sums["rollout_rs_masked_fraction"] = (mask & ~kept).sum()
        return weights, kept, sums
