"""Rejection of what engine and actor see too differently (`algorithm.rollout_correction.rollout_rs`).

Estimates of the divergence: Schulman 2020, joschu.net/blog/kl-approx.html. Of whole answers: Li et al. 2025,
richardli.xyz/rl-collapse. Names and bounds: verl's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rltrain.algos.masked import row_means, zero_outside
from rltrain.algos.off_policy import LOG_BOUND
from rltrain.config.schema import RolloutCorrectionConfig
from rltrain.config.thresholds import Criterion, criteria


def rollout_rs_kept(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, config: RolloutCorrectionConfig
) -> tuple[Tensor | None, dict[str, float]]:
    """Which tokens `[B, R]` bool the loss may count (None where `rollout_rs` is null), and metrics `rollout_corr/*`.

    With log rho = log pi_actor - log pi_rollout, held within ± 20: k1 = -log rho, k2 = (log rho)^2 / 2,
    k3 = rho - 1 - log rho, of each token, or their sum, mean or maximum over an answer. A token is kept where each
    criterion holds: log low <= k1 <= log high; k2, k3 <= high. Tokens outside of MASK are kept.
    """
    rules = criteria(config)
    if not rules:
        return None, {}
    with torch.no_grad():
        log_ratio = zero_outside(old_log_probs.double() - rollout_log_probs.double(), mask)
        log_ratio = log_ratio.clamp(-LOG_BOUND, LOG_BOUND)
        kept, metrics = torch.ones_like(mask), dict[str, float]()
        for rule in rules:
            values = _values(rule, log_ratio, mask)
            low, high = _bounds(rule)
            within = (values >= low) & (values <= high)
            kept &= within | ~mask
            if bool(mask.any()):
                metrics |= _metrics(rule, values, mask, low, high)
        if bool(mask.any()):
            metrics |= _named("", _shares(mask & ~kept, mask))
        return kept, metrics


def kept_by(rules: Sequence[Criterion], log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Which tokens `[B, R]` bool pass all RULES, of LOG_RATIO, actor less engine; those outside of MASK do."""
    log_ratio = zero_outside(log_ratio.double(), mask).clamp(-LOG_BOUND, LOG_BOUND)
    kept = torch.ones_like(mask)
    for rule in rules:
        values, (low, high) = _values(rule, log_ratio, mask), _bounds(rule)
        kept &= (values >= low) & (values <= high) | ~mask
    return kept


def _values(rule: Criterion, log_ratio: Tensor, mask: Tensor) -> Tensor:
    """What RULE judges, `[B, R]`: of an answer the same at all of its tokens."""
    each = {
        "k1": lambda: -log_ratio,
        "k2": lambda: log_ratio.square() / 2,
        "k3": lambda: log_ratio.exp() - 1 - log_ratio,
    }[rule.estimate]()
    each = zero_outside(each, mask)
    if rule.level == "token":
        return each
    if rule.level == "seq_max":
        of_row = each.amax(dim=-1)
    else:
        of_row = each.sum(dim=-1) if rule.level == "seq_sum" else row_means(each, mask)
    return of_row[:, None].expand_as(each)


def _bounds(rule: Criterion) -> tuple[float, float]:
    low, high = rule.bounds.low, rule.bounds.high
    if rule.estimate != "k1":
        return -math.inf, high
    assert low is not None
    return math.log(low), math.log(high)


def _metrics(rule: Criterion, values: Tensor, mask: Tensor, low: float, high: float) -> dict[str, float]:
    """Of one criterion: over tokens, or over answers however long."""
    counted = values[mask] if rule.level == "token" else values[:, 0][mask.any(dim=-1)]
    outside = (values < low) | (values > high)
    measures = {
        "mean": values[mask].mean(),
        "max": counted.max(),
        "min": counted.min(),
        "fraction_high": (counted > high).double().mean(),
        "fraction_low": (counted < low).double().mean(),
    }
    return _named(f"{rule.name}_", measures | _shares(outside & mask, mask))


def _shares(rejected: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Of tokens, and of answers that lose one or more."""
    rows = mask.any(dim=-1)
    shares = {"masked_fraction": rejected[mask], "seq_masked_fraction": rejected.any(dim=-1)[rows]}
    return {name: each.double().mean() for name, each in shares.items()}


def _named(part: str, measures: dict[str, Tensor]) -> dict[str, float]:
    return {f"rollout_corr/rollout_rs_{part}{name}": float(value) for name, value in measures.items()}
