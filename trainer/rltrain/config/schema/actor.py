"""The roles that train: actor and critic; and the reference policy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rltrain.config.schema.base import Section
from rltrain.config.schema.model import FsdpConfig, ModelConfig, OptimConfig, PolicyModelConfig
from rltrain.config.schema.rollout import RolloutConfig

LossAggMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class PolicyLossConfig(Section):
    """`actor_rollout_ref.actor.policy_loss`."""

    loss_mode: Literal["vanilla", "gspo", "cispo"] = "vanilla"


class ActorConfig(Section):
    """`actor_rollout_ref.actor`."""

    strategy: Literal["fsdp2"] = "fsdp2"
    ppo_mini_batch_size: int = Field(default=256, gt=0)
    """Prompts in one optimizer step (each brings `rollout.n` samples), over all ranks."""
    ppo_micro_batch_size_per_gpu: int | None = Field(default=None, gt=0)
    """Samples in one forward and backward pass, per rank."""
    use_dynamic_bsz: bool = False
    """Fill micro batches up to `ppo_max_token_len_per_gpu` tokens instead of counting samples."""
    ppo_max_token_len_per_gpu: int = Field(default=16384, gt=0)
    clip_ratio: float = Field(default=0.2, gt=0)
    clip_ratio_low: float | None = Field(default=None, gt=0)
    """Lower clip; null: `clip_ratio`."""
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Upper clip (DAPO's clip-higher); null: `clip_ratio`."""
    clip_ratio_c: float | None = Field(default=3.0, gt=1)
    """Bound of dual clip for negative advantages; null: none."""
    policy_loss: PolicyLossConfig = PolicyLossConfig()
    loss_agg_mode: LossAggMode = "token-mean"
    loss_scale_factor: float | None = Field(default=None, gt=0)
    """Divisor of `seq-mean-token-sum-norm`; null: `data.max_response_length`."""
    entropy_coeff: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = Field(default=0.001, ge=0)
    kl_loss_type: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"] = "low_var_kl"
    ppo_epochs: int = Field(default=1, gt=0)
    shuffle: bool = False
    """Shuffle the samples of a step before they are cut into mini batches."""
    grad_clip: float | None = Field(default=1.0, gt=0)
    """Largest norm of the gradient; null: no clipping."""
    use_torch_compile: bool = False
    optim: OptimConfig = OptimConfig()
    fsdp_config: FsdpConfig = FsdpConfig()


class RefConfig(Section):
    """`actor_rollout_ref.ref`: the frozen policy that KL is measured against."""

    log_prob_micro_batch_size_per_gpu: int | None = Field(default=None, gt=0)
    """Null: the actor's micro batch."""
    fsdp_config: FsdpConfig = FsdpConfig()


class ActorRolloutRefConfig(Section):
    """`actor_rollout_ref`."""

    hybrid_engine: bool = True
    """True: rollout engines share the actor's devices. False: they have devices of their own (`rollout.nnodes`)."""
    nccl_timeout: int = Field(default=600, gt=0)
    """Seconds after which a collective is given up."""
    model: PolicyModelConfig = PolicyModelConfig()
    actor: ActorConfig = ActorConfig()
    ref: RefConfig = RefConfig()
    rollout: RolloutConfig


class CriticOptimConfig(OptimConfig):
    """AdamW for the critic, which learns faster than the policy."""

    lr: float = Field(default=1e-5, gt=0)


class CriticModelConfig(ModelConfig):
    """`critic.model`."""

    use_remove_padding: bool | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Pack the tokens of a micro batch into one row, without padding; null: as the actor."""


class CriticConfig(Section):
    """`critic`: the value model that GAE needs."""

    enable: bool | None = None
    """Null: as `algorithm.adv_estimator` needs it."""
    model: CriticModelConfig = CriticModelConfig()
    """`path` null: the actor's model as backbone, with a fresh value head."""
    optim: CriticOptimConfig = CriticOptimConfig()
    fsdp_config: FsdpConfig = FsdpConfig()
    ppo_mini_batch_size: int | None = Field(default=None, gt=0)
    """Null: the actor's, as for each of the five below and `loss_agg_mode`."""
    ppo_micro_batch_size_per_gpu: int | None = Field(default=None, gt=0)
    use_dynamic_bsz: bool | None = None
    ppo_max_token_len_per_gpu: int | None = Field(default=None, gt=0)
    ppo_epochs: int | None = Field(default=None, gt=0)
    shuffle: bool | None = None
    cliprange_value: float = Field(default=0.5, gt=0)
    loss_agg_mode: LossAggMode | None = None
    grad_clip: float | None = Field(default=1.0, gt=0)
