"""Numbers about a batch, under verl's names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rltrain.algos.masked import zero_outside

NAN = float("nan")


def data_metrics(fields: Mapping[str, Tensor], max_prompt_length: int, max_response_length: int) -> dict[str, float]:
    """Scores, rewards, advantages, returns, values (where there is a critic) and lengths of a batch.

    FIELDS by name as in `rltrain.core.batch`: token_level_scores, token_level_rewards, advantages, returns `[B, R]`,
    response_mask bool `[B, R]`, attention_mask `[B, P + R]`, values `[B, R]` or absent. Scores and rewards are sums
    over a response, of the rows with at least one token. `clip_ratio` is the share of rows at the limit (tokens).
    """
    mask = fields["response_mask"]
    lengths = mask.sum(dim=-1).double()
    answered = lengths > 0
    prompt_lengths = fields["attention_mask"][:, : -mask.shape[1]].sum(dim=-1).double()
    metrics: dict[str, float] = {}
    for name, field in (("score", "token_level_scores"), ("rewards", "token_level_rewards")):
        sums = zero_outside(fields[field], mask).sum(dim=-1)
        metrics |= _statistics(f"critic/{name}", sums[answered])
    scores = zero_outside(fields["token_level_scores"], mask).sum(dim=-1)[answered]
    metrics["critic/score/std"] = _spread(scores)
    metrics["critic/advantages/std"] = _spread(fields["advantages"][mask])
    for name in ("advantages", "returns", "values"):
        if name in fields:
            metrics |= _statistics(f"critic/{name}", fields[name][mask])
    if "values" in fields:
        metrics["critic/vf_explained_var"] = explained_variance(fields["values"], fields["returns"], mask)
    metrics |= _lengths("response_length", lengths, max_response_length)
    metrics |= _lengths("response_length_non_aborted", lengths[answered], max_response_length)
    metrics |= _lengths("prompt_length", prompt_lengths, max_prompt_length)
    metrics["response/aborted_ratio"] = 1.0 - float(answered.double().mean())
    return metrics


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - var(returns - values) / (var(returns) + 1e-5) over the tokens: 1 is a perfect critic, 0 a constant one.

    All `[B, R]`. NaN with fewer than two tokens.
    """
    returns, values = returns[mask].double(), values[mask].double()
    if len(returns) < 2:
        return NAN
    return float(1 - (returns - values).var() / (returns.var() + 1e-5))


def rollout_diff_metrics(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> dict[str, float]:
    """How the engine's probabilities of the sampled tokens differ from the actor's. All `[B, R]`.

    `rollout_probs_diff_*` is |p_actor - p_rollout|, in probabilities, as in verl; `rollout_log_probs_diff_mean` the
    same of logarithms, `*_first` and `*_last` of each response's first and last token; `rollout_probs_diff_valid` 1, or
    0 with NaN in the others where there is no token. `rollout_log_probs_slope` is that of a line through the actor's
    logarithms over the engine's: far from 1 where one side leaves the temperature out. The correlations
    (arXiv:2506.13585) and the slope are NaN where one side is constant.
    """
    actor, rollout = old_log_probs[mask].double(), rollout_log_probs[mask].double()
    actor_probs, rollout_probs = actor.exp(), rollout.exp()
    differences = (actor_probs - rollout_probs).abs()
    count = len(differences)
    return {
        "training/rollout_probs_diff_valid": float(count > 0),
        "training/rollout_probs_diff_max": float(differences.max()) if count else NAN,
        "training/rollout_probs_diff_mean": float(differences.mean()) if count else NAN,
        "training/rollout_probs_diff_std": float(differences.std()) if count > 1 else NAN,
        "training/rollout_actor_probs_pearson_corr": correlation(actor_probs, rollout_probs),
        "training/rollout_log_probs_diff_mean": float((actor - rollout).abs().mean()) if count else NAN,
        "training/rollout_log_probs_corr": correlation(actor, rollout),
        "training/rollout_log_probs_slope": slope(actor, rollout),
    } | _ends((old_log_probs - rollout_log_probs).double().abs(), mask)


def _ends(gaps: Tensor, mask: Tensor) -> dict[str, float]:
    """Mean of GAPS `[B, R]` at the first and at the last token of each row that has one."""
    rows = mask.any(dim=-1)
    if not bool(rows.any()):
        return {f"training/rollout_log_probs_diff_{end}": NAN for end in ("first", "last")}
    places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    first = torch.where(mask, places, mask.shape[1]).amin(dim=-1)[rows]
    last = torch.where(mask, places, -1).amax(dim=-1)[rows]
    return {
        "training/rollout_log_probs_diff_first": float(gaps[rows].gather(1, first[:, None]).mean()),
        "training/rollout_log_probs_diff_last": float(gaps[rows].gather(1, last[:, None]).mean()),
    }


def correlation(left: Tensor, right: Tensor) -> float:
    """Pearson's, of two vectors; NaN where it is not defined."""
    if not len(left):
        return NAN
    left, right = left - left.mean(), right - right.mean()
    return float((left * right).sum() / (left.square().sum() * right.square().sum()).sqrt())


def slope(values: Tensor, over: Tensor) -> float:
    """Of the least-squares line through VALUES over OVER; NaN where it is not defined."""
    if not len(over):
        return NAN
    centred = over - over.mean()
    return float((centred * (values - values.mean())).sum() / centred.square().sum())


def _spread(values: Tensor) -> float:
    """Standard deviation of all of a vector, NaN where it is empty."""
    return float(values.double().std(correction=0)) if len(values) else NAN


def _statistics(name: str, values: Tensor) -> dict[str, float]:
    """Mean, max and min of a vector, NaN where it is empty."""
    if not len(values):
        return {f"{name}/{kind}": NAN for kind in ("mean", "max", "min")}
    return {
        f"{name}/mean": float(values.double().mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def _lengths(name: str, lengths: Tensor, limit: int) -> dict[str, float]:
    """Statistics of LENGTHS in tokens, and the share at the LIMIT."""
    clipped = float((lengths >= limit).double().mean()) if len(lengths) else NAN
    return {**_statistics(name, lengths), f"{name}/clip_ratio": clipped}
