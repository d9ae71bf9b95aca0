"""Truncated importance sampling between the engine's policy and the actor's (`algorithm.rollout_correction`).

Sources: Ionides 2008, Truncated importance sampling; Yao et al. 2025, fengyao.notion.site/off-policy-rl. Metric names:
verl's.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rltrain.algos.masked import masked_mean, row_means, zero_outside
from rltrain.algos.off_policy import bounded_exp, off_policy_metrics
from rltrain.config.schema import RolloutCorrectionConfig
from rltrain.config.thresholds import Bounds, weight_bounds


def rollout_is_weights(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, config: RolloutCorrectionConfig
) -> tuple[Tensor | None, dict[str, float]]:
    """Weights `[B, R]` of the tokens' losses (None where `rollout_is` is null), and metrics `rollout_corr/*`.

    w = min(rho, threshold), rho = pi_actor / pi_rollout: of each token (`token`: biased, low variance), or the product
    over the response, given to each of its tokens (`sequence`: unbiased but for the truncation, high variance). With a
    lower bound too (0.5_2.0), w = rho within both and 0 outside (IcePop: Ling Team 2025, arXiv:2510.18855). With
    `rollout_is_batch_normalize` they are divided by their mean, over tokens or over responses. No gradient flows
    through them; 0 outside the mask. Metrics describe the weights before that division.
    """
    metrics = off_policy_metrics(old_log_probs, rollout_log_probs, mask)
    level = config.rollout_is
    if level is None:
        return None, metrics
    with torch.no_grad():
        bounds = weight_bounds(config)
        weights, raw = truncated(old_log_probs - rollout_log_probs, mask, level, bounds)
        if metrics:
            metrics |= _weight_metrics(weights.double(), raw.double(), mask, level, bounds)
        if config.rollout_is_batch_normalize:
            mean = _mean_weight(weights, mask, level)
            metrics["rollout_corr/rollout_is_batch_norm_factor"] = float(mean)
            weights = weights / mean
        return weights, metrics


def truncated(
    log_ratio: Tensor, mask: Tensor, level: Literal["token", "sequence"], bounds: Bounds
) -> tuple[Tensor, Tensor]:
    """The weights `[B, R]` of LOG_RATIO, actor less engine, and rho before it was truncated; both 0 outside MASK."""
    log_ratio = zero_outside(log_ratio, mask)
    if level == "sequence":
        log_ratio = log_ratio.sum(dim=-1, keepdim=True).expand_as(log_ratio)
    raw = zero_outside(bounded_exp(log_ratio), mask)
    if bounds.low is None:
        return raw.clamp(max=bounds.high), raw
    return zero_outside(raw, (raw >= bounds.low) & (raw <= bounds.high)), raw


def _mean_weight(weights: Tensor, mask: Tensor, level: Literal["token", "sequence"]) -> Tensor:
    """Mean over tokens, or over responses however long; 1 where all are 0."""
    if not bool(weights.any()):
        return torch.ones_like(weights.sum())
    if level == "token":
        return masked_mean(weights, mask)
    return row_means(weights, mask)[mask.any(dim=-1)].mean()


def _weight_metrics(
    weights: Tensor, raw: Tensor, mask: Tensor, level: Literal["token", "sequence"], bounds: Bounds
) -> dict[str, float]:
    """Statistics of the truncated WEIGHTS, and of how often the RAW ones lie outside BOUNDS (low: 1 / high if none).

    As in verl, extremes at sequence level are those of the raw weights.
    """
    rows = mask.any(dim=-1)
    high, low = bounds.high, 1 / bounds.high if bounds.low is None else bounds.low
    of_rows, raw_of_rows = row_means(weights, mask)[rows], row_means(raw, mask)[rows]
    per_token = weights[mask]
    extremes, counted = (per_token, raw[mask]) if level == "token" else (raw_of_rows, raw_of_rows)
    measures = {
        "mean": per_token.mean(),
        "std": per_token.std(correction=0),
        "max": extremes.max(),
        "min": extremes.min(),
        "eff_sample_size": per_token.mean().square() / per_token.square().mean(),
        "ratio_fraction_high": (counted > high).double().mean(),
        "ratio_fraction_low": (counted < low).double().mean(),
        "seq_mean": of_rows.mean(),
        "seq_std": of_rows.std() if len(of_rows) > 1 else torch.zeros(()),
        "seq_max": of_rows.max(),
        "seq_min": of_rows.min(),
        "seq_max_deviation": (of_rows - 1).abs().max(),
        "seq_fraction_high": (raw_of_rows > high).double().mean(),
        "seq_fraction_low": (raw_of_rows < low).double().mean(),
    }
    if bounds.low is not None:
        measures["oob_ratio"] = ((raw < low) | (raw > high))[mask].double().mean()
    return {f"rollout_corr/rollout_is_{name}": float(value) for name, value in measures.items()}
