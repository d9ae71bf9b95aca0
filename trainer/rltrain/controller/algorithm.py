"""From scores to what the actor and the critic learn from: token rewards, importance weights, advantages, returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rltrain.algos.advantages import compute_advantages
from rltrain.algos.kl import kl_controller
from rltrain.algos.rejection import rollout_rs_kept
from rltrain.algos.rewards import apply_kl_to_reward
from rltrain.algos.rollout_correction import rollout_is_weights
from rltrain.config.schema import AlgorithmConfig
from rltrain.core.batch import Batch
from rltrain.core.clock import Clock
from rltrain.core.metrics import Metrics


class Algorithm:
    """`algorithm.*` applied to whole batches, on the controller; holds the KL controller's state."""

    def __init__(self, config: AlgorithmConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._kl = kl_controller(config.kl_ctrl)

    def advantages(self, batch: Batch) -> tuple[Batch, Metrics]:
        """BATCH with `token_level_rewards`, `advantages`, `returns` and, if asked for, `rollout_is_weights`,
        `rollout_rs_kept`."""
        with self._clock.stage("adv"):
            rewards, metrics = self._token_rewards(batch)
            fields: dict[str, Tensor] = {"token_level_rewards": rewards}
            config, mask = self._config, batch["response_mask"]
            fields["advantages"], fields["returns"] = compute_advantages(
                config.adv_estimator,
                token_level_rewards=rewards,
                response_mask=mask,
                group_ids=group_ids(batch),
                values=batch["values"] if "values" in batch.names else None,
                reward_baselines=batch["reward_baselines"] if "reward_baselines" in batch.names else None,
                gamma=config.gamma,
                lam=config.lam,
                norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo,
            )
            # Else the update reads the latter, or with bypass_mode corrects by what it reads itself.
            if {"rollout_log_probs", "old_log_probs"} <= batch.names and not config.rollout_correction.bypass_mode:
                both = batch["old_log_probs"], batch["rollout_log_probs"]
                for name, made in (("rollout_is_weights", rollout_is_weights), ("rollout_rs_kept", rollout_rs_kept)):
                    field, found = made(*both, batch.engine_mask, config.rollout_correction)
                    if field is not None:
                        fields[name] = field
                    metrics |= found
            return batch.with_fields(fields), metrics

    def _token_rewards(self, batch: Batch) -> tuple[Tensor, Metrics]:
        scores = batch["token_level_scores"]
        if not self._config.use_kl_in_reward:
            return scores, {}
        coefficient = self._kl.value
        rewards, mean_kl = apply_kl_to_reward(
            scores,
            batch["old_log_probs"],
            batch["ref_log_probs"],
            batch["response_mask"],
            coefficient,
            self._config.kl_penalty,
        )
        self._kl.update(mean_kl, len(batch))
        return rewards, {"actor/reward_kl_penalty": mean_kl, "actor/reward_kl_penalty_coeff": coefficient}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the KL coefficient."""
        return self._kl.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` was called."""
        self._kl.load_state_dict(state)


def group_ids(batch: Batch) -> Tensor:
    """Number of each row's prompt, `[B]` int64, in order of first appearance."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(s.uid, len(numbers)) for s in batch.samples], dtype=torch.int64)
