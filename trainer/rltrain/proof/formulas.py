"""The formulas of one step, each from its paper: B rows, R response tokens, `mask` bool `[B, R]`.

They compute in the dtype that they are given: float64 for the answer, float32 to see what rounding does to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Config = Mapping[str, Any]


def only(x: Tensor, mask: Tensor) -> Tensor:
    """X under MASK, 0 elsewhere, whatever is there."""
    return torch.where(mask, x, torch.zeros_like(x))


def kl(kind: str, log_p: Tensor, log_ref: Tensor) -> Tensor:
    """Schulman 2020, joschu.net/blog/kl-approx.html: with r = p_ref / p, k1 = -log r, k2 = (log r)^2 / 2 and
    k3 = (r - 1) - log r. As in verl log r is held in ±20 for k3, and k3 in 0 … 10.
    """
    log_r = log_ref - log_p
    if kind in ("kl", "k1"):
        return -log_r
    if kind == "abs":
        return log_r.abs()
    if kind in ("mse", "k2"):
        return log_r**2 / 2
    bounded = log_r.clamp(min=-20, max=20)
    return (torch.expm1(bounded) - bounded).clamp(min=0, max=10)


def rewards_with_kl(scores: Tensor, log_p: Tensor, log_ref: Tensor, mask: Tensor, coef: float, kind: str) -> Tensor:
    """r_t = score_t - beta KL_t (Ziegler et al. 2019, arXiv:1909.08593, section 2)."""
    return only(scores - coef * kl(kind, log_p, log_ref), mask)


def overlong(length: int, limit: int, buffer: int, factor: float) -> float:
    """DAPO, arXiv:2503.14476, equation 13: 0 up to limit - buffer, then linear down to -factor at the limit."""
    return -factor * min(max((length - (limit - buffer)) / buffer, 0.0), 1.0)


def whitened(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over MASK, var with n - 1 below; the 1e-8 is verl's. One token alone gives 0."""
    chosen = x[mask]
    if len(chosen) < 2:
        return torch.zeros_like(x)
    base = chosen.min()  # equal numbers have to give 0, not a rounding error times 1e4
    mean = (chosen - base).mean()
    variance = ((chosen - base - mean) ** 2).sum() / (len(chosen) - 1)
    return only((x - base - mean) / (variance + 1e-8).sqrt(), mask)


def discounted(x: Tensor, mask: Tensor, factor: float) -> Tensor:
    """y_t = x_t + factor y_{t+1}, the next token being the next one under MASK."""
    result, after = torch.zeros_like(x), x.new_zeros(len(x))
    for t in range(x.shape[1] - 1, -1, -1):
        after = torch.where(mask[:, t], x[:, t] + factor * after, after)
        result[:, t] = after
    return only(result, mask)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Schulman et al. 2015, arXiv:1506.02438, equations 11-16: delta_t = r_t + gamma V_{t+1} - V_t, A_t = the sum of
    (gamma lam)^k delta_{t+k}; V = 0 after the last token.
    """
    following, after = torch.zeros_like(values), values.new_zeros(len(values))
    for t in range(values.shape[1] - 1, -1, -1):
        following[:, t] = after
        after = torch.where(mask[:, t], values[:, t], after)
    return discounted(only(rewards + gamma * following - values, mask), mask, gamma * lam)


def in_groups(x: Tensor, present: Tensor, uids: Sequence[str], rule: Callable[[Tensor], Tensor]) -> Tensor:
    """RULE on the numbers X `[B]` of each prompt's answers that are PRESENT; 0 for the others."""
    result, members = torch.zeros_like(x), dict[str, list[int]]()
    for row, uid in enumerate(uids):
        if bool(present[row]):
            members.setdefault(uid, []).append(row)
    for rows in members.values():
        result[rows] = rule(x[rows])
    return result


def centred(x: Tensor) -> Tensor:
    """Minus the mean; a group of one gives 0, equal numbers exactly 0 (rltrain's choice; verl keeps a lone reward)."""
    return x - x[0] - (x - x[0]).mean()


def scaled(x: Tensor) -> Tensor:
    """GRPO, Shao et al. 2024, arXiv:2402.03300, section 4.1.2: (r - mean) / (std + 1e-6), n - 1 below; 1e-6 as verl."""
    away = centred(x)
    return away / ((away**2).sum() / max(len(x) - 1, 1)).sqrt().add(1e-6)


def left_out(x: Tensor) -> Tensor:
    """RLOO, Ahmadian et al. 2024, arXiv:2402.14740, section 2.2: r_i minus the mean of the others; alone: 0."""
    return centred(x) * (len(x) / max(len(x) - 1, 1))


def estimate(
    settings: Config, rewards: Tensor, mask: Tensor, uids: Sequence[str], values: Tensor, baselines: Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages and returns by `algorithm.*`. REINFORCE++ and its baseline: Hu et al. 2025, arXiv:2501.03262; ReMax:
    Li et al. 2023, arXiv:2310.10505, algorithm 2; Dr.GRPO, without std: Liu et al. 2025, arXiv:2503.20783.
    """
    name, gamma, present = settings["adv_estimator"], float(settings["gamma"]), mask.any(-1)
    rewards = only(rewards, mask)
    if name == "gae":
        raw = gae(rewards, only(values, mask), mask, gamma, float(settings["lam"]))
        return whitened(raw, mask), only(raw + values, mask)
    if name == "reinforce_plus_plus":
        returns = discounted(rewards, mask, gamma)
        return whitened(returns, mask), returns
    if name == "remax":
        returns = discounted(rewards, mask, 1.0)
        return only(returns - baselines[:, None], mask), returns
    rules = {"grpo": scaled if settings["norm_adv_by_std_in_grpo"] else centred, "rloo": left_out}
    if name not in (*rules, "reinforce_plus_plus_baseline"):
        raise NotImplementedError(f"the estimator '{name}'")
    of_row = in_groups(rewards.sum(-1), present, uids, rules.get(name, centred))
    spread = only(of_row[:, None].expand_as(rewards), mask)
    spread = spread if name in rules else whitened(spread, mask)
    return spread, spread


def importance(old: Tensor, engine: Tensor, mask: Tensor, settings: Config) -> Tensor | None:
    """min(rho, C), rho = p_actor / p_engine of a token or of the whole answer (Ionides 2008, Truncated importance
    sampling, equation 2.2); log rho held in ±20 as in verl; with batch normalisation divided by their mean. Of two
    bounds (Ling Team 2025, arXiv:2510.18855, equation 4): rho within them, 0 outside.
    """
    level, (low, _, cap) = settings["rollout_is"], str(settings["rollout_is_threshold"]).rpartition("_")
    if level is None:
        return None
    log_rho = only(old - engine, mask)
    if level == "sequence":
        log_rho = log_rho.sum(-1, keepdim=True) + torch.zeros_like(log_rho)
    rho = only(log_rho.clamp(-20, 20).exp(), mask)
    weights = only(rho, (rho >= float(low)) & (rho <= float(cap))) if low else rho.clamp(max=float(cap))
    if not settings["rollout_is_batch_normalize"] or not weights.any():
        return weights
    rows = mask.any(-1)
    return weights / (weights[mask].mean() if level == "token" else weights.max(-1).values[rows].mean())


def rejected(old: Tensor, engine: Tensor, mask: Tensor, settings: Config) -> list[tuple[Tensor, float, float]]:
    """What each criterion of `rollout_rs` judges `[B, R]`, and its bounds. k1, k2, k3 of log rho: Schulman 2020,
    joschu.net/blog/kl-approx.html; of a token, or of an answer by sum, mean or maximum. k1 has two bounds, of exp(k1).
    """
    names, words = (str(settings[key]).split(",") for key in ("rollout_rs", "rollout_rs_threshold"))
    log_rho, found = only(old - engine, mask).clamp(-20, 20), list[tuple[Tensor, float, float]]()
    for name, word in zip(names, words * len(names) if len(words) == 1 else words, strict=True):
        level, _, estimate = name.strip().rpartition("_")
        each = {"k1": -log_rho, "k2": log_rho**2 / 2, "k3": log_rho.exp() - 1 - log_rho}[estimate]
        row = {"seq_sum": each.sum(-1), "seq_mean": each.sum(-1) / mask.sum(-1).clamp(min=1), "seq_max": each.amax(-1)}
        low, _, high = word.strip().rpartition("_")
        bounds = (math.log(float(low) if low else 1 / float(high)), math.log(float(high))) if estimate == "k1" else None
        value = each if level == "token" else row[level][:, None].expand_as(each)
        found.append((value, *(bounds or (-math.inf, float(high)))))
    return found


def bypassed(correction: Config, log_p: Tensor, engine: Tensor, mask: Tensor) -> tuple[Tensor | None, Tensor]:
    """With `bypass_mode`: importance weights and tokens kept, by what an update reads itself; verl's core_algos.py,
    compute_policy_loss_bypass_mode (volcengine/verl at 1dda039).
    """
    now, kept = log_p.detach(), mask
    for value, low, high in rejected(now, engine, mask, correction) if correction.get("rollout_rs") else ():
        kept = kept & (value >= low) & (value <= high)
    return importance(now, engine, mask, correction), kept


def policy_terms(settings: Config, log_p: Tensor, old: Tensor, adv: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """The loss of each token by `actor.*`. PPO: Schulman et al. 2017, arXiv:1707.06347, equation 7, the two bounds of
    DAPO (arXiv:2503.14476), dual clip of Ye et al. 2019, arXiv:1912.09729, equation 5. GSPO-token: Zheng et al. 2025,
    arXiv:2507.18071, section 4.3. CISPO: MiniMax 2025, arXiv:2506.13585, equation 4. `reinforce`: Williams 1992,
    doi:10.1007/BF00992696. Bounds of log ratios: verl's.
    """
    low, high = 1 - float(settings["clip_ratio_low"]), 1 + float(settings["clip_ratio_high"])
    mode, log_ratio = settings["policy_loss"]["loss_mode"], only(log_p - old, mask)
    if mode == "gspo":
        mean = (log_ratio.sum(-1) / mask.sum(-1).clamp(min=1))[:, None].detach()
        ratio = (mean + log_p - log_p.detach()).clamp(max=10).exp()
    else:
        ratio = log_ratio.clamp(-20, 20).exp()
    if mode == "reinforce":
        terms = -adv * log_p
    elif mode == "cispo":
        terms = -ratio.detach().clamp(low, high) * adv * log_p
    else:
        terms = -torch.minimum(ratio * adv, ratio.clamp(low, high) * adv)
        if mode == "vanilla" and settings["clip_ratio_c"] is not None:
            terms = torch.where(adv < 0, torch.minimum(terms, -float(settings["clip_ratio_c"]) * adv), terms)
    return only(terms * weights, mask)


def value_terms(v: Tensor, old: Tensor, returns: Tensor, mask: Tensor, clip: float) -> Tensor:
    """1/2 max((V - G)^2, (clip(V, V_old ± c) - G)^2) (Engstrom et al. 2020, arXiv:2005.12729, section 3)."""
    held = torch.minimum(torch.maximum(v, old - clip), old + clip)
    return only(torch.maximum((v - returns) ** 2, (held - returns) ** 2) / 2, mask)


def aggregate(terms: Tensor, mask: Tensor, mode: str, tokens: int, rows: int, scale: float) -> Tensor:
    """The share of TERMS in the loss of a mini batch of so many TOKENS and ROWS with tokens: token-mean is DAPO's
    (arXiv:2503.14476, equation 8), seq-mean-token-mean GRPO's (arXiv:2402.03300, equation 3), …-norm Dr.GRPO's.
    """
    sums = only(terms, mask).sum(-1)
    if mode == "token-mean":
        return sums.sum() / max(tokens, 1)
    if mode == "seq-mean-token-mean":
        sums = sums / mask.sum(-1).clamp(min=1)
    return sums.sum() / (max(rows, 1) * (scale if mode == "seq-mean-token-sum-norm" else 1.0))


def learning_rate(settings: Config, update: int, total: int) -> float:
    """Linear warm-up from 0, then constant, linear or cosine (Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5)
    down to `min_lr_ratio` of the peak. UPDATE counts a role's updates, one an iteration, from 0; TOTAL: iterations.
    """
    peak, floor, warm = float(settings["lr"]), float(settings["min_lr_ratio"]), int(settings["lr_warmup_steps"])
    warm = warm if warm > 0 else math.floor(float(settings["lr_warmup_steps_ratio"]) * total)
    if update < warm:
        return peak * update / warm
    along = min((update - warm) / max(total - warm, 1), 1.0)
    shape = {"constant": 1.0, "linear": 1 - along, "cosine": (1 + math.cos(math.pi * along)) / 2}
    kind = settings["lr_scheduler_type"]
    return peak if kind == "constant" else peak * (floor + (1 - floor) * shape[kind])


def clip_factor(norm: float, largest: float | None) -> float:
    """min(1, c / norm) (Pascanu et al. 2013, arXiv:1211.5063, algorithm 1)."""
    return 1.0 if largest is None or norm <= largest else largest / norm


State = tuple[Tensor, Tensor, Tensor]
"""Weights, first and second moment."""


def adamw(settings: Config, state: State, gradient: Tensor, lr: float, count: int) -> State:
    """Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, as torch has it: the decay is lr * weight_decay.

    COUNT: steps before this one, for the correction of the moments' bias.
    """
    (w, m, v), (b1, b2) = state, (float(b) for b in settings["betas"])
    m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
    step = (m / (1 - b1 ** (count + 1))) / ((v / (1 - b2 ** (count + 1))).sqrt() + float(settings["eps"]))
    return w - lr * float(settings["weight_decay"]) * w - lr * step, m, v
