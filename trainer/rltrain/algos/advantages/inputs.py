"""What an advantage estimator is given."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AdvantageInputs:
    """A whole batch. Rewards and values are 0 outside the mask."""

    token_level_rewards: Tensor
    """`[B, R]`"""
    response_mask: Tensor
    """bool `[B, R]`"""
    group_ids: Tensor
    """int64 `[B]`: rows of one prompt share a number."""
    values: Tensor | None
    """`[B, R]`: the critic's estimate before each token; gae only."""
    reward_baselines: Tensor | None
    """`[B]`: reward of the greedy response to the row's prompt; remax only."""
    gamma: float
    lam: float
    norm_adv_by_std_in_grpo: bool

    @property
    def scores(self) -> Tensor:
        """Reward of each response, `[B]`: the sum over its tokens."""
        return self.token_level_rewards.sum(dim=-1)

    @property
    def present(self) -> Tensor:
        """Rows that have a token, bool `[B]`. The others are padding and count in no statistic."""
        return self.response_mask.any(dim=-1)

    def spread(self, per_row: Tensor) -> Tensor:
        """PER_ROW `[B]` given to each token of its row, `[B, R]`; 0 outside the mask."""
        return per_row.unsqueeze(-1) * self.response_mask.to(per_row.dtype)
