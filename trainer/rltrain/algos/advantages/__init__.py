"""Advantage estimators by name (`algorithm.adv_estimator`). They run on the controller, over the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

from rltrain.algos.advantages.inputs import AdvantageInputs
from rltrain.algos.masked import zero_outside
from rltrain.config.estimators import ESTIMATORS

Advantages = Callable[[AdvantageInputs], tuple[Tensor, Tensor]]


def function_of(estimator: str) -> Advantages:
    """Return the formula of ESTIMATOR, one of `ESTIMATORS`."""
    name = ESTIMATORS[estimator].name
    return getattr(import_module(f"{__name__}.{name}"), name)


def compute_advantages(
    estimator: str,
    *,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    group_ids: Tensor,
    values: Tensor | None,
    reward_baselines: Tensor | None,
    gamma: float,
    lam: float,
    norm_adv_by_std_in_grpo: bool,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, each `[B, R]`, 0 outside the mask.

    Shapes: token_level_rewards, values `[B, R]`; response_mask bool `[B, R]`; group_ids int64, reward_baselines `[B]`.

    Raises:
        ValueError: values or reward_baselines are missing, and the estimator needs them.
    """
    with torch.no_grad():
        inputs = AdvantageInputs(
            token_level_rewards=zero_outside(token_level_rewards, response_mask),
            response_mask=response_mask,
            group_ids=group_ids,
            values=None if values is None else zero_outside(values, response_mask),
            reward_baselines=reward_baselines,
            gamma=gamma,
            lam=lam,
            norm_adv_by_std_in_grpo=norm_adv_by_std_in_grpo,
        )
        advantages, returns = function_of(estimator)(inputs)
        return zero_outside(advantages, response_mask), zero_outside(returns, response_mask)


__all__ = ["AdvantageInputs", "compute_advantages", "function_of"]
