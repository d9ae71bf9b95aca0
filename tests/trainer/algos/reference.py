"""The papers' formulas as loops over rows and tokens, in float64 NumPy. Written apart from rltrain.algos on purpose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def tokens(mask: np.ndarray, row: int) -> list[int]:
    return [t for t in range(mask.shape[1]) if mask[row, t]]


def whitened(table: dict[tuple[int, int], float], shape: tuple[int, int]) -> np.ndarray:
    result = np.zeros(shape)
    mean = math.fsum(table.values()) / len(table)
    variance = math.fsum((x - mean) ** 2 for x in table.values()) / (len(table) - 1)
    for place, value in table.items():
        result[place] = (value - mean) / math.sqrt(variance + 1e-8)
    return result


def members(case: dict[str, Any], row: int) -> list[int]:
    """Rows of ROW's group that have a token."""
    ids, mask = case["group_ids"], case["response_mask"]
    return [other for other in range(len(ids)) if ids[other] == ids[row] and mask[other].any()]


def score(case: dict[str, Any], row: int) -> float:
    return math.fsum(case["token_level_rewards"][row, t] for t in tokens(case["response_mask"], row))


def discounted(case: dict[str, Any], gamma: float) -> dict[tuple[int, int], float]:
    """G_t = sum over k of gamma^k r_{t+k}, over the tokens under the mask."""
    table = {}
    for row in range(len(case["response_mask"])):
        places = tokens(case["response_mask"], row)
        for i, t in enumerate(places):
            later = [gamma**k * case["token_level_rewards"][row, u] for k, u in enumerate(places[i:])]
            table[row, t] = math.fsum(later)
    return table


def gae(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """arXiv:1506.02438 eq. 16: A_t = sum over l of (gamma lam)^l delta_{t+l}."""
    mask, rewards, values = case["response_mask"], case["token_level_rewards"], case["values"]
    table, returns = {}, np.zeros(mask.shape)
    for row in range(len(mask)):
        places = tokens(mask, row)
        deltas = []
        for i, t in enumerate(places):
            after = values[row, places[i + 1]] if i + 1 < len(places) else 0.0
            deltas.append(rewards[row, t] + case["gamma"] * after - values[row, t])
        for i, t in enumerate(places):
            table[row, t] = math.fsum((case["gamma"] * case["lam"]) ** k * d for k, d in enumerate(deltas[i:]))
            returns[row, t] = table[row, t] + values[row, t]
    return whitened(table, mask.shape), returns


def per_response(case: dict[str, Any], advantage: Any) -> np.ndarray:
    result = np.zeros(case["response_mask"].shape)
    for row in range(len(result)):
        for t in tokens(case["response_mask"], row):
            result[row, t] = advantage(row)
    return result


def grpo(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """arXiv:2402.03300 section 4.1.2; without the division arXiv:2503.20783."""

    def advantage(row: int) -> float:
        rewards = [score(case, other) for other in members(case, row)]
        if len(rewards) == 1:
            return 0.0
        mean = math.fsum(rewards) / len(rewards)
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
        return (score(case, row) - mean) / (std + 1e-6 if case["norm_adv_by_std_in_grpo"] else 1.0)

    return per_response(case, advantage), per_response(case, advantage)


def rloo(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """arXiv:2402.14740 eq. 8: minus the mean of the others."""

    def advantage(row: int) -> float:
        others = [score(case, other) for other in members(case, row) if other != row]
        return score(case, row) - math.fsum(others) / len(others) if others else 0.0

    return per_response(case, advantage), per_response(case, advantage)


def reinforce_plus_plus(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """arXiv:2501.03262: discounted returns, normalised over the global batch."""
    table, returns = discounted(case, case["gamma"]), np.zeros(case["response_mask"].shape)
    for place, value in table.items():
        returns[place] = value
    return whitened(table, returns.shape), returns


def reinforce_plus_plus_baseline(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """arXiv:2501.03262: minus the group's mean, then normalised over the global batch."""
    table = {}
    for row in range(len(case["response_mask"])):
        for t in tokens(case["response_mask"], row):
            group = members(case, row)
            table[row, t] = score(case, row) - math.fsum(score(case, other) for other in group) / len(group)
    result = whitened(table, case["response_mask"].shape)
    return result, result


def remax(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """arXiv:2310.10505: minus the greedy response's reward."""
    advantages, returns = np.zeros(case["response_mask"].shape), np.zeros(case["response_mask"].shape)
    for (row, t), value in discounted(case, 1.0).items():
        returns[row, t] = value
        advantages[row, t] = value - case["reward_baselines"][row]
    return advantages, returns


def clipped(ratio: float, low: float, high: float) -> float:
    return min(max(ratio, 1 - low), 1 + high)


def vanilla(ratio: float, advantage: float, low: float, high: float, c: float | None) -> float:
    """arXiv:1707.06347 eq. 7 and arXiv:1912.09729 eq. 5, negated."""
    objective = min(ratio * advantage, clipped(ratio, low, high) * advantage)
    return -(max(objective, c * advantage) if advantage < 0 and c is not None else objective)


def policy_loss(name: str, inputs: Any) -> np.ndarray:
    """Loss of each token, from PolicyLossInputs."""
    log_probs, old, advantages, mask = (
        each.detach().numpy()
        for each in (inputs.log_probs, inputs.old_log_probs, inputs.advantages, inputs.response_mask)
    )
    low, high = inputs.clip_ratio_low, inputs.clip_ratio_high
    result = np.zeros(mask.shape)
    for row in range(len(mask)):
        places = tokens(mask, row)
        for t in places:
            ratio, advantage = math.exp(log_probs[row, t] - old[row, t]), advantages[row, t]
            if name == "vanilla":
                result[row, t] = vanilla(ratio, advantage, low, high, inputs.clip_ratio_c)
            elif name == "cispo":  # arXiv:2506.13585 eq. 4
                result[row, t] = -clipped(ratio, low, high) * advantage * log_probs[row, t]
            else:  # arXiv:2507.18071 eq. 5 and 7
                whole = math.prod(math.exp(log_probs[row, u] - old[row, u]) for u in places) ** (1 / len(places))
                result[row, t] = vanilla(whole, advantage, low, high, None)
            if inputs.rollout_is_weights is not None:
                result[row, t] *= float(inputs.rollout_is_weights[row, t])
    return result


def aggregated(terms: np.ndarray, mask: np.ndarray, mode: str, scale: float) -> float:
    """The loss of a whole mini batch."""
    rows = [[terms[row, t] for t in tokens(mask, row)] for row in range(len(mask))]
    rows = [row for row in rows if row]
    if mode == "token-mean":
        return math.fsum(x for row in rows for x in row) / sum(len(row) for row in rows)
    of_row = {
        "seq-mean-token-sum": lambda row: math.fsum(row),
        "seq-mean-token-mean": lambda row: math.fsum(row) / len(row),
        "seq-mean-token-sum-norm": lambda row: math.fsum(row) / scale,
    }[mode]
    return math.fsum(of_row(row) for row in rows) / len(rows)
