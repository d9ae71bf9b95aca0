"""How far two readings of the same sampled tokens are apart: the numbers of `rlcheck.facts.drift.Gap`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlcheck.facts.drift import Gap
from rltrain.algos.metrics import correlation, slope
from rltrain.algos.off_policy import bounded_exp

FAR = 0.01
"""Difference of probabilities from which a token counts as far off."""


def gap(train: Tensor, rollout: Tensor) -> Gap:
    """Return how far two readings are apart.

    Args:
        train: log-probabilities as the training side reads them, finite `[N]`; N is at least 1.
        rollout: as the engine gave them, finite `[N]`.
    """
    train, rollout = train.double(), rollout.double()
    log_ratio = train - rollout
    rho = bounded_exp(log_ratio)
    p_train, p_rollout = train.exp(), rollout.exp()
    probs, logs = (p_train - p_rollout).abs(), log_ratio.abs()
    return Gap(
        num_tokens=len(train),
        probs_diff_mean=float(probs.mean()),
        probs_diff_max=float(probs.max()),
        probs_diff_std=float(probs.std()) if len(probs) > 1 else 0.0,
        log_probs_diff_mean=float(logs.mean()),
        log_probs_diff_max=float(logs.max()),
        kl=float(-log_ratio.mean()),
        k3_kl=float((rho - log_ratio - 1).mean()),
        is_mean=float(rho.mean()),
        is_std=float(rho.std(correction=0)),
        ess=float(rho.mean().square() / rho.square().mean()),
        corr=_or_none(correlation(p_train, p_rollout)),
        log_corr=_or_none(correlation(train, rollout)),
        slope=_or_none(slope(train, rollout)),
        share_above=float((probs > FAR).double().mean()),
    )


def distance(left: Tensor, right: Tensor) -> float:
    """Mean absolute difference of two vectors."""
    return float((left.double() - right.double()).abs().mean())


def finite(*vectors: Tensor) -> Tensor:
    """Where all VECTORS are finite, bool `[N]`."""
    return torch.stack([vector.isfinite() for vector in vectors]).all(dim=0)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
