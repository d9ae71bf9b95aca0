"""Advantage estimators by name (`algorithm.adv_estimator`). They run on the controller, over the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from trainer.algos.advantages.gae import gae
from trainer.algos.advantages.grpo import grpo
from trainer.algos.advantages.inputs import AdvantageInputs
from trainer.algos.advantages.reinforce_plus_plus import reinforce_plus_plus
from trainer.algos.advantages.reinforce_plus_plus_baseline import reinforce_plus_plus_baseline
from trainer.algos.advantages.remax import remax
from trainer.algos.advantages.rloo import rloo
from trainer.algos.masked import zero_outside
from trainer.config.schema import AdvEstimator

Estimator = Callable[[AdvantageInputs], tuple[Tensor, Tensor]]

ADVANTAGES: Mapping[AdvEstimator, Estimator] = {
    "gae": gae,
    "grpo": grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
}


def compute_advantages(
    estimator: AdvEstimator,
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
        ValueError: gae without values, remax without reward_baselines.
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
        advantages, returns = ADVANTAGES[estimator](inputs)
        return zero_outside(advantages, response_mask), zero_outside(returns, response_mask)


__all__ = ["ADVANTAGES", "AdvantageInputs", "Estimator", "compute_advantages"]
