"""What is legal in a run config and probably not meant."""

from __future__ import annotations

from collections.abc import Iterator

from rltrain.config.estimators import has_need
from rltrain.config.resolve import rollout_devices
from rltrain.config.schema import RunConfig

_ROLLOUT = "actor_rollout_ref.rollout"


def notes(config: RunConfig) -> list[str]:
    """One line for each thing in the resolved CONFIG that the user should know of."""
    return [
        *_kl(config),
        *_loss(config),
        *_sampling(config),
        *_staleness(config),
        *_precision(config),
        *_placement(config),
        *_trainer(config),
    ]


def _kl(config: RunConfig) -> Iterator[str]:
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    if algorithm.use_kl_in_reward and actor.use_kl_loss:
        yield "KL to the reference counts twice: algorithm.use_kl_in_reward and actor_rollout_ref.actor.use_kl_loss"
    if algorithm.use_kl_in_reward and algorithm.kl_ctrl.kl_coef == 0 and algorithm.kl_ctrl.type == "fixed":
        yield "algorithm.use_kl_in_reward with kl_ctrl.kl_coef=0 keeps a reference model for measurement only"
    if actor.use_kl_loss and actor.kl_loss_coef == 0:
        yield "actor_rollout_ref.actor.use_kl_loss with kl_loss_coef=0 keeps a reference model for measurement only"
    if algorithm.kl_ctrl.type == "adaptive" and not algorithm.use_kl_in_reward:
        yield "algorithm.kl_ctrl.type=adaptive has no effect without algorithm.use_kl_in_reward"


def _loss(config: RunConfig) -> Iterator[str]:
    actor, critic = config.actor_rollout_ref.actor, config.critic
    if actor.policy_loss.loss_mode == "gspo":
        if actor.loss_agg_mode != "seq-mean-token-mean":
            yield f"gspo (arXiv:2507.18071) goes with loss_agg_mode=seq-mean-token-mean, not {actor.loss_agg_mode}"
        if (actor.clip_ratio_high or actor.clip_ratio) > 0.01:
            yield "gspo clips the ratio of whole sequences: its paper uses clip_ratio_low=3e-4, clip_ratio_high=4e-4"
    if critic.enable and not has_need(config.algorithm.adv_estimator, "critic"):
        yield f"critic.enable=true trains a critic that adv_estimator={config.algorithm.adv_estimator} does not use"


def _staleness(config: RunConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.max_staleness and algorithm.rollout_correction.rollout_is is None:
        yield (
            f"algorithm.max_staleness={algorithm.max_staleness}: answers come from weights "
            f"{'one step' if algorithm.max_staleness == 1 else 'up to so many steps'} behind; "
            "algorithm.rollout_correction.rollout_is=token corrects for that"
        )


def _sampling(config: RunConfig) -> Iterator[str]:
    rollout = config.actor_rollout_ref.rollout
    if rollout.top_p < 1 or rollout.top_k > 0 or rollout.min_tokens > 0:
        yield (
            f"{_ROLLOUT}.top_p, top_k or min_tokens cut the engine's distribution; the actor's log-probabilities are "
            "of the whole one: training/rollout_probs_diff will not be near 0"
        )
    for engine, arguments in rollout.engine_kwargs.items():
        if arguments and engine != rollout.name:
            yield f"{_ROLLOUT}.engine_kwargs.{engine} has no effect with name={rollout.name}"
    if config.trainer.wandb_proxy is not None and "wandb" not in config.trainer.logger:
        yield "trainer.wandb_proxy has no effect: trainer.logger does not name wandb"


def _precision(config: RunConfig) -> Iterator[str]:
    parts = config.actor_rollout_ref
    if parts.actor.fsdp_config.dtype != parts.rollout.dtype:
        yield (
            f"the actor computes in {parts.actor.fsdp_config.dtype}, the engine in {parts.rollout.dtype}: "
            "training/rollout_probs_diff will show it"
        )
    if parts.actor.fsdp_config.model_dtype != "float32":
        yield (
            f"actor_rollout_ref.actor.fsdp_config.model_dtype={parts.actor.fsdp_config.model_dtype}: optimizer steps "
            "smaller than its rounding are lost"
        )


def _trainer(config: RunConfig) -> Iterator[str]:
    trainer = config.trainer
    if trainer.save_freq < 0:
        yield "trainer.save_freq=-1: no checkpoint is saved, not even at the end (as in verl); give a number of steps"
    if trainer.critic_warmup == 1:
        yield "trainer.critic_warmup=1 has no effect: it is the first step in which the actor learns (as in verl)"


def _placement(config: RunConfig) -> Iterator[str]:
    parts = config.actor_rollout_ref
    rollout, tp = parts.rollout, parts.rollout.tensor_model_parallel_size
    if config.trainer.device == "cpu":
        return
    idle = rollout_devices(config) - (rollout.num_replicas or 0) * tp
    if idle > 0:
        yield f"{idle} of {rollout_devices(config)} rollout GPUs hold no engine: num_replicas={rollout.num_replicas}"
    if parts.hybrid_engine and not rollout.free_cache_engine:
        yield f"{_ROLLOUT}.free_cache_engine=false: the engine keeps its memory while the actor trains"
