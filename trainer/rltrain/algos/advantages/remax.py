"""ReMax: REINFORCE against the greedy response's reward (Li et al. 2023, arXiv:2310.10505)."""

from __future__ import annotations

from torch import Tensor

from rltrain.algos.advantages.inputs import AdvantageInputs


def remax(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Advantages and returns, each `[B, R]`.

    return_t = sum of r over t and after;  A_t = return_t - (reward of the greedy response to the same prompt).

    Raises:
        ValueError: no baselines.
    """
    if inputs.reward_baselines is None:
        raise ValueError("remax needs reward_baselines: the rewards of greedy responses")
    returns = inputs.token_level_rewards.flip(-1).cumsum(-1).flip(-1)
    return returns - inputs.reward_baselines.unsqueeze(-1), returns
