"""A config of `rltrain sft`: completed, checked, and as that of a run whose actor alone is trained, on given rows.

Training ranks know run configs. A supervised training is one of them to which no rollout belongs: `as_run`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrain.config.engines import ENGINES
from rltrain.config.estimators import needing
from rltrain.config.resolve import Machine, replaced, resolve
from rltrain.config.rules import SHARED_RULES
from rltrain.config.schema import (
    ActorConfig,
    ActorRolloutRefConfig,
    AlgorithmConfig,
    CriticConfig,
    DataConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    TrainerConfig,
)
from rltrain.config.schema.run import AnyTrainerConfig
from rltrain.config.schema.sft import SftConfig
from rltrain.core.errors import UserError

_WORDS = {
    "actor_rollout_ref.model": "model",
    "actor_rollout_ref.actor.fsdp_config": "engine",
    "data.max_prompt_length + data.max_response_length": "data.max_length",
    "data.max_response_length": "data.max_length",
}
"""Of the run that a training is shown as, to its own."""


def resolve_sft(config: SftConfig, machine: Machine) -> SftConfig:
    """CONFIG with nothing left open, for a training started on MACHINE; see `resolve`.

    Raises:
        UserError: the number of training ranks cannot be known.
    """
    run = resolve(_run(config), machine)
    parts, shared = run.actor_rollout_ref, AnyTrainerConfig.model_fields
    return replaced(
        config,
        model=parts.model,
        engine=parts.actor.fsdp_config,
        data=replaced(config.data, train_files=run.data.train_files, val_files=run.data.val_files, seed=run.data.seed),
        trainer=replaced(config.trainer, **{name: getattr(run.trainer, name) for name in shared}),
    )


def as_run(config: SftConfig) -> RunConfig:
    """CONFIG (resolved) as that of a run, for training ranks and for what describes them."""
    device = config.trainer.device
    assert device != "auto", "the config is not resolved"
    return resolve(_run(config), Machine(device, 0, 1))


def _run(config: SftConfig) -> RunConfig:
    data, optim = config.data, config.optim
    prompt = data.max_length // 2
    return RunConfig(
        actor_rollout_ref=ActorRolloutRefConfig(
            nccl_timeout=config.trainer.nccl_timeout,
            model=config.model,
            actor=ActorConfig(
                ppo_mini_batch_size=data.train_batch_size,
                ppo_micro_batch_size_per_gpu=data.micro_batch_size_per_gpu,
                use_dynamic_bsz=data.use_dynamic_bsz,
                ppo_max_token_len_per_gpu=data.max_token_len_per_gpu,
                grad_clip=optim.clip_grad,
                optim=OptimConfig(**{name: getattr(optim, name) for name in OptimConfig.model_fields}),
                fsdp_config=config.engine,
            ),
            rollout=RolloutConfig(name=next(iter(ENGINES)), temperature=1.0),
        ),
        critic=CriticConfig(enable=False),
        algorithm=AlgorithmConfig(adv_estimator=needing()[0]),
        data=DataConfig(
            train_files=data.train_files,
            val_files=data.val_files,
            max_prompt_length=prompt,
            max_response_length=data.max_length - prompt,
            train_batch_size=data.train_batch_size,
            train_max_samples=data.train_max_samples,
            val_max_samples=data.val_max_samples,
            shuffle=data.shuffle,
            seed=data.seed,
            apply_chat_template_kwargs=data.apply_chat_template_kwargs,
        ),
        trainer=TrainerConfig(
            **{name: getattr(config.trainer, name) for name in AnyTrainerConfig.model_fields},
            max_actor_ckpt_to_keep=config.trainer.max_ckpt_to_keep,
            audit=False,
        ),
        ray_kwargs=config.ray_kwargs,
        toy=config.toy,
    )


def check_sft(config: SftConfig) -> None:
    """Hold the resolved CONFIG against every rule.

    Raises:
        UserError: each problem, one a line: key, what is wrong, how to fix it.
    """
    problems = [*_inherited(config), *_batches(config), *_data(config), *_checkpoint(config)]
    if problems:
        raise UserError("\n".join(problems))


def _inherited(config: SftConfig) -> Iterator[str]:
    run = as_run(config)
    # A training without held-out rows is one; a run without validation is not.
    data = replaced(run.data, val_files=run.data.val_files or run.data.train_files)
    for rule in SHARED_RULES:
        for problem in rule(replaced(run, data=data)):
            text = problem
            for word, own in _WORDS.items():
                text = text.replace(word, own)
            yield text


def _batches(config: SftConfig) -> Iterator[str]:
    data, ranks = config.data, config.trainer.nnodes * (config.trainer.n_gpus_per_node or 1)
    if data.train_batch_size < ranks:
        yield f"data.train_batch_size: {data.train_batch_size} rows leave some of the {ranks} ranks without any"
    if not data.use_dynamic_bsz:
        return
    if not config.model.use_remove_padding:
        yield (
            "data.use_dynamic_bsz: counts tokens without padding, so it needs model.use_remove_padding=true; set that, "
            "or data.use_dynamic_bsz=false, which counts rows (data.micro_batch_size_per_gpu)"
        )
    if data.max_token_len_per_gpu < data.max_length:
        yield (
            f"data.max_token_len_per_gpu: {data.max_token_len_per_gpu} tokens do not hold one row of data.max_length="
            f"{data.max_length}"
        )


def _data(config: SftConfig) -> Iterator[str]:
    if config.trainer.test_freq > 0 and config.data.val_files is None and config.toy is None:
        yield "trainer.test_freq: there is nothing to validate on; give data.val_files, or set it to -1"


def _checkpoint(config: SftConfig) -> Iterator[str]:
    lacking = {"model", "optimizer", "extra"} - set(config.checkpoint.save_contents)
    if lacking:
        names = ", ".join(sorted(lacking))
        yield f"checkpoint.save_contents: {names} must be among it: no training could go on from the checkpoint"


def sft_notes(config: SftConfig) -> list[str]:
    """One line for each thing in the resolved CONFIG that the user should know of."""
    found: list[str] = []
    if config.trainer.save_freq < 0:
        found.append("trainer.save_freq=-1: no checkpoint is saved, not even at the end (as in verl)")
    if config.engine.model_dtype != "float32":
        found.append(f"engine.model_dtype={config.engine.model_dtype}: optimizer steps below its rounding are lost")
    return found


def batch_lines(config: SftConfig) -> list[str]:
    """The arithmetic of batches in words; CONFIG has been resolved."""
    data, ranks = config.data, config.trainer.nnodes * (config.trainer.n_gpus_per_node or 1)
    share = -(-data.train_batch_size // ranks)
    micro = (
        f"as many rows as fit in {data.max_token_len_per_gpu} tokens, packed"
        if data.use_dynamic_bsz
        else f"{min(data.micro_batch_size_per_gpu, share)} rows"
    )
    return [
        f"batch          {data.train_batch_size} rows, over all ranks: what one optimizer step learns from",
        f"per rank       {data.train_batch_size} rows / {ranks} ranks = {share} rows at most",
        f"micro batch    {micro}: what one forward and backward pass holds; it sets memory, not the result",
    ]
