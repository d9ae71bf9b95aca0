"""`algorithm`: advantages, KL control, corrections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rltrain.config.estimators import ESTIMATORS
from rltrain.config.schema.base import Section

_NAMES = tuple(ESTIMATORS)
if TYPE_CHECKING:
    AdvEstimator = str
else:
    AdvEstimator = Literal[_NAMES]


class KlCtrlConfig(Section):
    """`algorithm.kl_ctrl`: the coefficient of KL in the reward (adaptive: Ziegler et al. 2019, arXiv:1909.08593)."""

    type: Literal["fixed", "adaptive"] = "fixed"
    kl_coef: float = Field(default=0.001, ge=0)
    horizon: int = Field(default=10000, gt=0)
    target_kl: float = Field(default=0.1, gt=0)


class RolloutCorrectionConfig(Section):
    """`algorithm.rollout_correction`: importance weights and rejection between engine and actor."""

    rollout_is: Literal["token", "sequence"] | None = None
    rollout_is_threshold: float | str = 2.0
    """2.0: larger weights are cut to it. 0.5_2.0: weights outside of it are 0."""
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    """What the loss leaves out: a criterion such as `seq_mean_k1`, or several with commas; what passes all is kept."""
    rollout_rs_threshold: float | str | None = None
    """Of each criterion, with commas: 0.5_2.0 (or 2.0) for k1, an upper bound for k2 and k3."""
    bypass_mode: bool = False
    """Take the engine's log-probabilities as the old policy's, without computing the actor's."""
    loss_type: Literal["ppo_clip", "reinforce"] = "ppo_clip"
    """With bypass_mode: `ppo_clip`, the ratio to the engine's policy is clipped; `reinforce`, -w A log pi, where w are
    the weights of `rollout_is` and nothing is clipped."""


class FilterGroupsConfig(Section):
    """`algorithm.filter_groups`: DAPO's dynamic sampling (arXiv:2503.14476): groups of equal rewards are dropped."""

    enable: bool = False
    metric: str = Field(default="acc", min_length=1)
    """What must differ within a group: `acc` (whether answers are right, by the rules that know the ground truth, or a
    function's own `acc`), `score` (all parts of the reward by their weights, without the penalty for length), or the
    name of a part, such as a rule's, `custom`, `custom/KEY` or `model`."""
    max_num_gen_batches: int = Field(default=0, ge=0)
    """Generation rounds to fill one batch; 0: no limit."""


class AlgorithmConfig(Section):
    """`algorithm`."""

    adv_estimator: AdvEstimator = "gae"
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)
    norm_adv_by_std_in_grpo: bool = True
    use_kl_in_reward: bool = False
    kl_penalty: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"] = "kl"
    kl_ctrl: KlCtrlConfig = KlCtrlConfig()
    rollout_correction: RolloutCorrectionConfig = RolloutCorrectionConfig()
    filter_groups: FilterGroupsConfig = FilterGroupsConfig()
    max_staleness: int = Field(default=0, ge=0)
    """Steps by which the weights that generate may be behind those that learn. 0: each step generates, then learns. 1:
    one step off, step k + 1 is generated while step k trains. 2 and more: answers are learnt from as they finish, and
    take new weights while they are being written. From 1 on rollout needs devices of its own. rltrain's own."""
    mask_truncated_completions: bool = False
    """DAPO's overlong filtering: answers cut at `data.max_response_length` count in no loss; their rewards still count
    in the baseline of their group. rltrain's own."""
