"""How far the engine's policy (rollout) is from the actor's, on the tokens that it sampled: `rollout_corr/*`."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.masked import masked_mean, row_means, zero_outside

LOG_BOUND = 20.0
"""Log ratios are held within ± this before exp, as in verl."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp of LOG_RATIO held within ± 20."""
    return log_ratio.clamp(-LOG_BOUND, LOG_BOUND).exp()


def off_policy_metrics(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> dict[str, float]:
    """verl's measures of the gap. Arguments `[B, R]`, mask bool. Empty where there is no token.

    With rho = pi_actor / pi_rollout: `kl` = E[-log rho] and `k3_kl` = E[rho - log rho - 1] estimate KL(rollout, actor);
    `chi2_token` = E[rho^2] - 1, `chi2_seq` the same for whole responses; `*_ppl` are the means over responses of
    exp(-mean log p), `log_ppl_diff` actor's minus rollout's, `ppl_ratio` its exp.
    """
    if not bool(mask.any()):
        return {}
    with torch.no_grad():
        actor, rollout = (zero_outside(each.double(), mask) for each in (old_log_probs, rollout_log_probs))
        rows = mask.any(dim=-1)
        log_ratio = actor - rollout
        rho = bounded_exp(log_ratio)
        actor_nll, rollout_nll = -row_means(actor, mask)[rows], -row_means(rollout, mask)[rows]
        difference = actor_nll - rollout_nll
        measures = {
            "kl": masked_mean(-log_ratio, mask),
            "k3_kl": masked_mean(rho - log_ratio - 1, mask),
            "training_ppl": actor_nll.exp().mean(),
            "training_log_ppl": actor_nll.mean(),
            "rollout_ppl": rollout_nll.exp().mean(),
            "rollout_log_ppl": rollout_nll.mean(),
            "log_ppl_diff": difference.mean(),
            "log_ppl_abs_diff": difference.abs().mean(),
            "log_ppl_diff_max": difference.max(),
            "log_ppl_diff_min": difference.min(),
            "ppl_ratio": difference.exp().mean(),
            "chi2_token": masked_mean(rho.square(), mask) - 1,
            "chi2_seq": bounded_exp(log_ratio.sum(dim=-1))[rows].square().mean() - 1,
        }
        return {f"rollout_corr/{name}": float(value) for name, value in measures.items()}
