"""What is tried to explain a gap: one thing changed at a time, the cheapest first.

LoRA is not among it (rltrain trains whole models: nothing is merged before a sync), nor the dtype of the rotary table
(vLLM has no switch for it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rltrain.config.engines import ENGINES, loaded
from rltrain.config.schema import RunConfig
from rltrain.measure.drift.reread import Reading

_ROLLOUT = "actor_rollout_ref.rollout"
_VLLM = f"{_ROLLOUT}.engine_kwargs.vllm"
_TRAIN_DTYPE = "actor_rollout_ref.actor.fsdp_config.dtype=float32"


@dataclass(frozen=True)
class Change:
    """One thing that is other than in the run; `overrides`: what a run would set to have it so."""

    name: str
    title: str
    family: Literal["wrong", "imprecise"] = "imprecise"
    side: Literal["rollout", "training", "both"] = "training"
    overrides: tuple[str, ...] = ()
    reading: Reading | None = None
    """The same samples, read so."""
    same_samples: bool = False
    """After a restart, the samples of the run as it is are read."""
    most_prompts: int | None = None
    """Where all of them would take too long."""


def readings(config: RunConfig) -> list[Change]:
    """Of the training side, with the samples that are there. CONFIG is resolved."""
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    found: list[Change] = []
    if config.actor_rollout_ref.actor.use_dynamic_bsz or rollout.log_prob_micro_batch_size_per_gpu != 1:
        overrides = (f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu=1",)
        if config.actor_rollout_ref.actor.use_dynamic_bsz:
            overrides = ("actor_rollout_ref.actor.use_dynamic_bsz=false", *overrides)
        title = "one row in each pass of the training side"
        found.append(Change("alone", title, overrides=overrides, reading=Reading(alone=True)))
    if model.use_remove_padding:
        title = "padded rows and torch's attention on the training side"
        overrides = ("actor_rollout_ref.model.use_remove_padding=false",)
        found.append(Change("padded", title, overrides=overrides, reading=Reading(padded=True)))
    title = "plain attention (eager) on the training side"
    found.append(Change("eager_attention", title, reading=Reading(padded=True, attention="eager")))
    return found


def restarts(config: RunConfig) -> list[Change]:
    """What takes new processes. CONFIG is resolved."""
    own = ENGINES[config.actor_rollout_ref.rollout.name].changes
    found: list[Change] = loaded(own)(config) if own else []
    dtypes = _dtypes(config)
    differ = config.actor_rollout_ref.rollout.dtype != config.actor_rollout_ref.actor.fsdp_config.dtype
    return [*dtypes, *found] if differ else [*found, *dtypes]


def _dtypes(config: RunConfig) -> list[Change]:
    rollout, train = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor.fsdp_config
    found: list[Change] = []
    if rollout.dtype not in (train.dtype, "float32", "float16"):  # nothing trains in float16
        overrides = (f"actor_rollout_ref.actor.fsdp_config.dtype={rollout.dtype}",)
        title = f"the training side computes in {rollout.dtype}, as the engine does"
        found.append(Change("engine_dtype", title, overrides=overrides, same_samples=True))
    if train.dtype != "float32":
        title = "the training side computes in float32"
        found.append(Change("train_float32", title, overrides=(_TRAIN_DTYPE,), same_samples=True))
    if rollout.dtype != "float32":
        overrides = (f"{_ROLLOUT}.dtype=float32", *([_TRAIN_DTYPE] if train.dtype != "float32" else []))
        found.append(Change("float32", "both sides compute in float32", side="both", overrides=overrides))
    return found


def of_vllm(config: RunConfig) -> list[Change]:
    """Of vLLM's own settings. CONFIG is resolved."""
    rollout, on_gpu = config.actor_rollout_ref.rollout, config.trainer.device == "cuda"
    own = rollout.engine_kwargs.get("vllm", {})
    found: list[Change] = []

    def add(name: str, title: str, *overrides: str, most: int | None = None) -> None:
        found.append(Change(name, title, side="rollout", overrides=overrides, most_prompts=most))

    if on_gpu and not rollout.enforce_eager:
        add("enforce_eager", "no CUDA graphs and no compilation in the engine", f"{_ROLLOUT}.enforce_eager=true")
    if rollout.enable_prefix_caching:
        add("no_prefix_caching", "no prefix caching", f"{_ROLLOUT}.enable_prefix_caching=false")
    if on_gpu and rollout.enable_chunked_prefill:  # on a CPU it reads prompts whole
        add("no_chunked_prefill", "no chunked prefill", *_without_chunks(config))
    if on_gpu and own.get("disable_cascade_attn") is False:  # of 0.26 it is off unless asked for
        add("no_cascade_attention", "no cascade attention", f"{_VLLM}.disable_cascade_attn=true")
    if on_gpu:
        other = "FLASH_ATTN" if own.get("attention_backend") == "TRITON_ATTN" else "TRITON_ATTN"
        add("attention_backend", f"the engine's attention is {other}", f"{_VLLM}.attention_backend={other}")
    if rollout.dtype != "float32":
        overrides = {**config.actor_rollout_ref.model.override_config, **own.get("hf_overrides", {})}
        words = ", ".join(f"{key}: {value}" for key, value in {**overrides, "head_dtype": "float32"}.items())
        add("engine_float32_head", "the engine's LM head computes in float32", f"{_VLLM}.hf_overrides={{{words}}}")
    if rollout.tensor_model_parallel_size > 1:
        add("one_gpu", "the engine on one GPU", f"{_ROLLOUT}.tensor_model_parallel_size=1")
    if on_gpu:
        variable = "ray_kwargs.ray_init.runtime_env.env_vars.VLLM_BATCH_INVARIANT"
        add("batch_invariant", "the engine's batch-invariant mode", f"+{variable}='1'")
    if rollout.max_num_seqs > 1:
        most = 8 if on_gpu else None
        add("one_sequence", "one sequence at a time in the engine", f"{_ROLLOUT}.max_num_seqs=1", most=most)
    return found


def _without_chunks(config: RunConfig) -> tuple[str, ...]:
    """Without chunks, vLLM wants room for a whole sequence in one pass."""
    rollout = config.actor_rollout_ref.rollout
    assert rollout.max_model_len is not None
    off = f"{_ROLLOUT}.enable_chunked_prefill=false"
    if rollout.max_num_batched_tokens >= rollout.max_model_len:
        return (off,)
    return (off, f"{_ROLLOUT}.max_num_batched_tokens={rollout.max_model_len}")
