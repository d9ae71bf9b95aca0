"""`trainer`, `ray_kwargs`, and the whole run config."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rltrain.config.schema.actor import ActorRolloutRefConfig, CriticConfig
from rltrain.config.schema.algorithm import AlgorithmConfig
from rltrain.config.schema.base import Section
from rltrain.config.schema.data import DataConfig, SftWarmupConfig, ToyConfig
from rltrain.config.schema.reward import CustomRewardFunctionConfig, RewardModelConfig

Logger = Literal["console", "tensorboard", "wandb"]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class AnyTrainerConfig(Section):
    """What `trainer` holds for every kind of training."""

    seed: int = Field(default=1, ge=0, lt=2**32)
    """Seeds everything: weights, data order, sampling."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    nnodes: int = Field(default=1, gt=0)
    n_gpus_per_node: int | None = Field(default=None, gt=0)
    """Training ranks per node; null: the GPUs of this machine, or `num_cpu_ranks` where there is none."""
    num_cpu_ranks: int = Field(default=1, gt=0)
    total_epochs: int = Field(default=30, gt=0)
    total_training_steps: int | None = Field(default=None, gt=0)
    """Null: `total_epochs` over the data."""
    project_name: str = "rltrain"
    experiment_name: str = "run"
    logger: Annotated[tuple[Logger, ...], BeforeValidator(_as_list)] = ("console", "tensorboard")
    wandb_proxy: str | None = None
    default_local_dir: str = "runs/${trainer.project_name}/${trainer.experiment_name}"
    """The run directory."""
    save_freq: int = -1
    """Steps between checkpoints, of which the last step always has one; -1: none is ever saved."""
    test_freq: int = -1
    """Steps between validations, the last step's always among them; -1: none after the training has begun."""
    val_before_train: bool = True
    resume_mode: str = "auto"
    """`auto`: go on from the last checkpoint of the run directory, if there is one. `disable`: start over. A path, or
    `resume_path` with `resume_from_path`: go on from that checkpoint."""
    resume_from_path: str | None = None
    verify_checkpoint: bool = True
    """Read the whole checkpoint before a run goes on from it, and hold every file against its SHA-256. False: only see
    that all files are there with their sizes, for checkpoints that take minutes to read. rltrain's own."""
    balance_batch: bool = True
    """Spread long and short samples evenly over the ranks."""
    stall_timeout_s: float = Field(default=1800, gt=0)
    """Without progress for this long, say who waits for whom, and end."""
    shutdown_timeout_s: float = Field(default=30, gt=0)


class TrainerConfig(AnyTrainerConfig):
    """`trainer`."""

    max_actor_ckpt_to_keep: int | None = Field(default=None, gt=0)
    """Checkpoints to keep besides the best; null: all."""
    critic_warmup: int = Field(default=0, ge=0)
    """The first step in which the actor learns, beside the critic: N - 1 steps are the critic's alone."""
    rollout_data_dir: str | None = None
    """Directory for every sample of every step, as `STEP.jsonl`; null: none. A few are in `samples/` of the run
    directory, too."""
    log_samples_freq: int = 10
    """Steps between samples written to `samples/` in the run directory; -1: never."""
    num_log_samples: int = Field(default=8, ge=0)
    """Of such a step, the first so many."""
    verify_weight_sync: bool = False
    """Compare checksums of the engine's weights with those of the actor's own parameters after each sync."""
    audit: bool = True
    """Write the audit record of each step."""
    audit_freq: int | None = Field(default=None, gt=0)
    """Steps between audits of all parameters (`parameter_sha256`), from the first on; null: so often that they take at
    most 1 % of the time."""
    capsule_steps: tuple[int, ...] | None = None
    """Steps of which a capsule is kept, for `rlcheck step`; null: the first step, where a small model is kept whole."""


class RayKwargsConfig(Section):
    """`ray_kwargs`: passed to Ray."""

    ray_init: dict[str, Any] = {}
    """Arguments of `ray.init`, such as `address` or `num_cpus`."""
    timeline_json_file: str | None = None


class RunConfig(Section):
    """One run: everything that `rltrain run` needs to know."""

    actor_rollout_ref: ActorRolloutRefConfig
    critic: CriticConfig = CriticConfig()
    reward_model: RewardModelConfig = RewardModelConfig()
    custom_reward_function: CustomRewardFunctionConfig = CustomRewardFunctionConfig()
    data: DataConfig = DataConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    ray_kwargs: RayKwargsConfig = RayKwargsConfig()
    sft_warmup: SftWarmupConfig = SftWarmupConfig()
    toy: ToyConfig | None = None

    @property
    def needs_reference(self) -> bool:
        """Whether a KL to the reference policy is measured anywhere."""
        return self.actor_rollout_ref.actor.use_kl_loss or self.algorithm.use_kl_in_reward
