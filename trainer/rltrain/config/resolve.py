"""Replace what a config leaves open (null, `auto`, relative paths) by what holds on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from rlcheck.measure.config.rltrain_data import micro_batch
from rltrain.config.engines import ENGINES
from rltrain.config.estimators import has_need
from rltrain.config.messages import shown
from rltrain.config.paths import absolute, model_directory
from rltrain.config.schema import (
    ActorConfig,
    CriticConfig,
    DataConfig,
    FsdpConfig,
    ModelConfig,
    Precision,
    RewardModelConfig,
    RolloutConfig,
    RunConfig,
    Section,
    TrainerConfig,
)
from rltrain.core.errors import UserError

S = TypeVar("S", bound=Section)
M = TypeVar("M", bound=ModelConfig)
Device = Literal["cpu", "cuda"]
# Samples in one pass where the config names no micro batch: what 24 GB hold for a small model, and what a CPU likes.


@dataclass(frozen=True)
class Machine:
    """What the machine that starts the run has."""

    device: Device
    num_gpus: int
    num_cpus: int


def resolve(config: RunConfig, machine: Machine) -> RunConfig:
    """CONFIG with nothing left open, for a run started on MACHINE.

    Only `trainer.total_training_steps` (it depends on the data), paths that a run does without, and nulls that mean
    "none" stay. Resolving twice changes nothing.

    Raises:
        UserError: the number of training ranks cannot be known.
    """
    device = machine.device if config.trainer.device == "auto" else config.trainer.device
    parts = config.actor_rollout_ref
    trainer = _trainer(config, device, machine)
    assert trainer.n_gpus_per_node is not None
    world_size = trainer.nnodes * trainer.n_gpus_per_node
    actor = _actor(config, device, world_size)
    model = _model(parts.model)
    fsdp = _fsdp(parts.ref.fsdp_config, device)
    ref_micro = parts.ref.log_prob_micro_batch_size_per_gpu or actor.ppo_micro_batch_size_per_gpu
    return replaced(
        config,
        trainer=trainer,
        actor_rollout_ref=replaced(
            parts,
            model=model,
            actor=actor,
            ref=replaced(parts.ref, fsdp_config=fsdp, log_prob_micro_batch_size_per_gpu=ref_micro),
            rollout=_rollout(config, actor, device, trainer),
        ),
        critic=_critic(config, actor, model, device),
        reward_model=_reward_model(config, device),
        custom_reward_function=replaced(config.custom_reward_function, path=_path(config.custom_reward_function.path)),
        data=_data(config.data, trainer.seed),
        sft_warmup=replaced(config.sft_warmup, files=_files(config.sft_warmup.files)),
    )


def chosen(before: Section, after: Section) -> list[str]:
    """One line for each value that `resolve` made of null or `auto`: `KEY = VALUE`."""
    old, new = _flat(before.model_dump(), ""), _flat(after.model_dump(), "")
    return [f"{key} = {shown(new[key])}" for key, value in old.items() if value in (None, "auto") and new[key] != value]


def _trainer(config: RunConfig, device: Device, machine: Machine) -> TrainerConfig:
    trainer = config.trainer
    return replaced(
        trainer,
        device=device,
        n_gpus_per_node=trainer.n_gpus_per_node or _ranks_per_node(config, device, machine),
        default_local_dir=absolute(trainer.default_local_dir),
        rollout_data_dir=_path(trainer.rollout_data_dir),
        resume_from_path=_path(trainer.resume_from_path),
        # A capsule is of one policy; one step off, answers are of another than the one that learns.
        capsule_steps=() if config.algorithm.max_staleness and trainer.capsule_steps is None else trainer.capsule_steps,
    )


def _ranks_per_node(config: RunConfig, device: Device, machine: Machine) -> int:
    if device == "cpu":
        return config.trainer.num_cpu_ranks
    parts = config.actor_rollout_ref
    shared = parts.hybrid_engine or parts.rollout.nnodes or ENGINES[parts.rollout.name].is_elsewhere
    beside = 0 if shared else parts.rollout.n_gpus_per_node
    if machine.num_gpus <= beside:
        raise UserError(
            f"trainer.n_gpus_per_node: this machine has {machine.num_gpus} GPUs"
            + (f", of which rollout takes {beside}" if beside else "")
            + "; give the number of training ranks per node, or trainer.device=cpu"
        )
    return machine.num_gpus - beside


def _actor(config: RunConfig, device: Device, world_size: int) -> ActorConfig:
    actor = config.actor_rollout_ref.actor
    shard = -(-actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n // world_size)
    return replaced(
        actor,
        ppo_micro_batch_size_per_gpu=actor.ppo_micro_batch_size_per_gpu or micro_batch(shard, device),
        clip_ratio_low=actor.clip_ratio_low or actor.clip_ratio,
        clip_ratio_high=actor.clip_ratio_high or actor.clip_ratio,
        loss_scale_factor=actor.loss_scale_factor or float(config.data.max_response_length),
        fsdp_config=_fsdp(actor.fsdp_config, device),
    )


def _rollout(config: RunConfig, actor: ActorConfig, device: Device, trainer: TrainerConfig) -> RolloutConfig:
    rollout = config.actor_rollout_ref.rollout
    micro = rollout.log_prob_micro_batch_size_per_gpu or actor.ppo_micro_batch_size_per_gpu
    length = config.data.max_prompt_length + config.data.max_response_length
    devices = rollout_devices(replaced(config, trainer=trainer))
    # A CPU engine uses all the cores that it finds, so a second one gains nothing, unless slots are counted out.
    own = not config.actor_rollout_ref.hybrid_engine and rollout.n_gpus_per_node
    single = ENGINES[rollout.name].is_elsewhere or (device == "cpu" and not own)
    engines = 1 if single else max(1, devices // rollout.tensor_model_parallel_size)
    return replaced(
        rollout,
        dtype=_precision(rollout.dtype, device),
        num_replicas=rollout.num_replicas or engines,
        max_model_len=rollout.max_model_len or length,
        log_prob_micro_batch_size_per_gpu=micro,
    )


def rollout_devices(config: RunConfig) -> int:
    """The devices that engines run on, over all nodes; CONFIG's `trainer` has been resolved."""
    parts, trainer = config.actor_rollout_ref, config.trainer
    assert trainer.n_gpus_per_node is not None
    if parts.hybrid_engine:
        return trainer.nnodes * trainer.n_gpus_per_node
    return max(1, parts.rollout.nnodes) * parts.rollout.n_gpus_per_node


def _critic(config: RunConfig, actor: ActorConfig, model: ModelConfig, device: Device) -> CriticConfig:
    critic = config.critic
    own = _model(critic.model)
    if own.path is None:
        own = replaced(
            own,
            path=model.path,
            tokenizer_path=model.tokenizer_path,
            trust_remote_code=model.trust_remote_code,
            override_config={**model.override_config, **own.override_config},
        )
    if own.use_remove_padding is None:
        own = replaced(own, use_remove_padding=model.use_remove_padding)
    inherited = ("ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu")
    values = critic.model_dump(include={*inherited, "ppo_epochs", "shuffle", "loss_agg_mode"})
    filled = {key: getattr(actor, key) if value is None else value for key, value in values.items()}
    enable = has_need(config.algorithm.adv_estimator, "critic") if critic.enable is None else critic.enable
    return replaced(critic, enable=enable, model=own, fsdp_config=_fsdp(critic.fsdp_config, device), **filled)


def _reward_model(config: RunConfig, device: Device) -> RewardModelConfig:
    reward, rescore = config.reward_model, config.reward_model.rescore
    if rescore is None:
        asks = config.custom_reward_function.path is not None or reward.enable
        rescore = not asks and all(rule.kind != "math" for rule in reward.rules)
    return replaced(reward, model=_model(reward.model), fsdp_config=_fsdp(reward.fsdp_config, device), rescore=rescore)


def _data(data: DataConfig, seed: int) -> DataConfig:
    return replaced(
        data,
        train_files=_files(data.train_files),
        val_files=_files(data.val_files),
        seed=seed if data.seed is None else data.seed,
    )


def _model(model: M) -> M:
    tokenizer = model.tokenizer_path or model.path
    return replaced(
        model,
        path=None if model.path is None else model_directory(model.path),
        tokenizer_path=None if tokenizer is None else model_directory(tokenizer),
    )


def _fsdp(fsdp: FsdpConfig, device: Device) -> FsdpConfig:
    return replaced(fsdp, dtype=_precision(fsdp.dtype, device), model_dtype=_precision(fsdp.model_dtype, device))


def _precision(value: Precision, device: Device) -> Precision:
    if value != "auto":
        return value
    return "bfloat16" if device == "cuda" else "float32"


def _path(path: str | None) -> str | None:
    return None if path is None else absolute(path)


def _files(files: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    if files is None:
        return None
    return tuple(absolute(path) for path in ((files,) if isinstance(files, str) else files))


def replaced(section: S, **values: Any) -> S:
    """SECTION with some VALUES of their own types."""
    return section.model_copy(update=values)


def _flat(tree: dict[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        inner = cast("dict[str, Any]", value) if isinstance(value, dict) else None
        found |= {f"{prefix}{name}": value} if inner is None else _flat(inner, f"{prefix}{name}.")
    return found
