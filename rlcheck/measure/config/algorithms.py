"""`algorithm` of a config, which verl and rltrain name alike."""

from __future__ import annotations

from rlcheck.facts.config import AlgorithmSpec
from rlcheck.measure.config.config import Config


def algorithm_of(config: Config) -> AlgorithmSpec:
    """Advantages and KL control of CONFIG."""
    pick = config.pick
    return AlgorithmSpec(
        adv_estimator=pick.text("algorithm.adv_estimator", "gae"),
        gamma=pick.number("algorithm.gamma", 1.0),
        lam=pick.number("algorithm.lam", 1.0),
        use_kl_in_reward=pick.flag("algorithm.use_kl_in_reward"),
        kl_coef=pick.number("algorithm.kl_ctrl.kl_coef", 0.001),
        kl_ctrl_type=pick.text("algorithm.kl_ctrl.type", "fixed"),
        norm_adv_by_std_in_grpo=pick.flag("algorithm.norm_adv_by_std_in_grpo", True),
        rollout_is=pick.text("algorithm.rollout_correction.rollout_is"),
        bypass_mode=pick.flag("algorithm.rollout_correction.bypass_mode"),
    )
