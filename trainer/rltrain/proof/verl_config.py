"""What verl's config means in the keys that the reference reads; most of them are the same."""

# A config is whatever JSON has.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ALGORITHM: Mapping[str, Any] = {
    "adv_estimator": "gae", "gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": True, "use_kl_in_reward": False,
    "kl_penalty": "kl", "kl_ctrl": {"type": "fixed", "kl_coef": 0.001},
}  # fmt: skip
"""Defaults of verl/trainer/config/ppo_trainer.yaml."""


def mapped(config: Mapping[str, Any]) -> dict[str, Any]:
    """verl's CONFIG with its defaults; `reward.custom_reward_function` of later releases where earlier ones had it."""
    given, reward = config.get("algorithm"), config.get("reward")
    later = reward.get("custom_reward_function") if isinstance(reward, Mapping) else None
    algorithm = {**_ALGORITHM, **(given if isinstance(given, Mapping) else {})}
    function = config.get("custom_reward_function") or later or {}
    return {**config, "algorithm": algorithm, "custom_reward_function": function, "reward_model": {}}
