"""verl's roles: how its keys say what a role's model, sharding, optimizer and batches are."""

from __future__ import annotations

from typing import Any, cast

from rlcheck.facts.config import ModelUse, Optim, RoleSpec, Sharding
from rlcheck.measure.config.config import Config

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
# verl's module of a model engine: the section below a role that says how it is sharded.
_SECTIONS = {"megatron": "megatron", "torchtitan": "torchtitan", "veomni": "veomni", "mindspeed": "megatron"}


def engine_section(config: Config, role: str) -> str:
    """The section that says how ROLE (a dotted key) is sharded."""
    name = _SECTIONS.get(config.engine)
    if name is not None:
        return f"{role}.{name}"
    if role != "critic":
        return f"{role}.fsdp_config"
    # 0.7.1 has the critic's below its model, later versions beside it.
    return "critic.model.fsdp_config" if "critic.model.fsdp_config.fsdp_size" in config.values else "critic.fsdp"


def actor(config: Config) -> RoleSpec:
    """The policy. Its passes without gradient are those of the old log-probabilities, which `rollout` sizes."""
    pick = config.pick
    low, high = pick.number(f"{ACTOR}.clip_ratio_low"), pick.number(f"{ACTOR}.clip_ratio_high")
    micro = _micro(config, f"{ACTOR}.ppo_micro_batch_size")
    section = engine_section(config, ACTOR)
    return RoleSpec(
        name="actor",
        model=model(config, MODEL, section),
        sharding=sharding(config, ACTOR, section),
        optim=optim(config, ACTOR),
        mini_batch_size=pick.whole(f"{ACTOR}.ppo_mini_batch_size", 256),
        micro_batch_size=micro,
        dynamic_batch=pick.flag(f"{ACTOR}.use_dynamic_bsz"),
        max_tokens=pick.whole(f"{ACTOR}.ppo_max_token_len_per_gpu", 16384),
        infer_micro_batch_size=_inferred(config, f"{ROLLOUT}.log_prob_micro_batch_size", micro),
        infer_dynamic_batch=pick.flag(f"{ROLLOUT}.log_prob_use_dynamic_bsz"),
        infer_max_tokens=pick.whole(f"{ROLLOUT}.log_prob_max_token_len_per_gpu", 16384),
        epochs=pick.whole(f"{ACTOR}.ppo_epochs", 1),
        chunked_logits=_either(config, section, ACTOR, "entropy_from_logits_with_chunking"),
        chunk_tokens=pick.whole(f"{section}.entropy_from_logits_chunk_size", 2048),
        entropy_checkpointing=_either(config, section, ACTOR, "entropy_checkpointing"),
        torch_compile=pick.flag(f"{ACTOR}.use_torch_compile", True),
        clip_ratio=pick.number(f"{ACTOR}.clip_ratio", 0.2),
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=pick.number(f"{ACTOR}.clip_ratio_c"),
        entropy_coeff=pick.number(f"{ACTOR}.entropy_coeff", 0.0),
        calculate_entropy=pick.flag(f"{ACTOR}.calculate_entropy"),
        use_kl_loss=pick.flag(f"{ACTOR}.use_kl_loss"),
        kl_loss_coef=pick.number(f"{ACTOR}.kl_loss_coef", 0.001),
        loss_agg_mode=pick.text(f"{ACTOR}.loss_agg_mode", "token-mean"),
        loss_mode=pick.text(f"{ACTOR}.policy_loss.loss_mode", "vanilla"),
        save_contents=pick.words(f"{ACTOR}.checkpoint.save_contents"),
    )


def ref(config: Config, policy: RoleSpec) -> RoleSpec:
    """The frozen policy; it has the actor's model, and with LoRA it is the actor without its adapter."""
    pick, section = config.pick, engine_section(config, REF)
    lora = policy.model.lora_rank > 0 or pick.text(f"{MODEL}.lora_adapter_path") is not None
    if lora:
        config.fallbacks.append("LoRA: the reference policy is the actor without its adapter; it takes no memory")
    parts = sharding(config, REF, section)
    return RoleSpec(
        name="ref",
        trained=False,
        shares_actor=lora,
        model=policy.model,
        sharding=parts,
        infer_micro_batch_size=_inferred(config, f"{REF}.log_prob_micro_batch_size", policy.micro_batch_size),
        infer_dynamic_batch=pick.flag(f"{REF}.log_prob_use_dynamic_bsz", policy.dynamic_batch),
        infer_max_tokens=pick.whole(f"{REF}.log_prob_max_token_len_per_gpu", policy.max_tokens),
        chunked_logits=_either(config, section, REF, "entropy_from_logits_with_chunking"),
        chunk_tokens=pick.whole(f"{section}.entropy_from_logits_chunk_size", 2048),
        torch_compile=pick.flag(f"{REF}.use_torch_compile", True),
    )


def critic(config: Config, policy: RoleSpec) -> RoleSpec:
    """The value model, which `critic.enable` or the estimator asks for."""
    pick, section = config.pick, engine_section(config, "critic")
    micro = _micro(config, "critic.ppo_micro_batch_size")
    most = pick.whole("critic.ppo_max_token_len_per_gpu", 32768)
    dynamic = pick.flag("critic.use_dynamic_bsz", policy.dynamic_batch)
    return RoleSpec(
        name="critic",
        model=model(config, "critic.model", section),
        sharding=sharding(config, "critic", section),
        optim=optim(config, "critic"),
        mini_batch_size=pick.whole("critic.ppo_mini_batch_size", policy.mini_batch_size or 256),
        micro_batch_size=micro,
        dynamic_batch=dynamic,
        max_tokens=most,
        infer_micro_batch_size=_inferred(config, "critic.forward_micro_batch_size", micro),
        infer_dynamic_batch=dynamic,
        infer_max_tokens=pick.whole("critic.forward_max_token_len_per_gpu", most),
        epochs=pick.whole("critic.ppo_epochs", policy.epochs),
        cliprange_value=pick.number("critic.cliprange_value", 0.5),
        loss_agg_mode=pick.text("critic.loss_agg_mode", policy.loss_agg_mode),
        save_contents=pick.words("critic.checkpoint.save_contents"),
    )


def model(config: Config, key: str, section: str) -> ModelUse:
    """The model under the section KEY."""
    pick = config.pick
    rank = pick.whole(f"{key}.lora_rank", 0)
    nested = rank == 0 and pick.whole(f"{key}.lora.rank", 0) > 0
    where = f"{key}.lora." if nested else f"{key}."
    override = pick.mapping(f"{key}.override_config")
    inner = override.get("model_config")
    return ModelUse(
        path=pick.text(f"{key}.path"),
        tokenizer_path=pick.text(f"{key}.tokenizer_path"),
        trust_remote_code=pick.flag(f"{key}.trust_remote_code") or pick.flag("data.trust_remote_code"),
        # Megatron's form of the section has the model's own keys one level down.
        override=cast("dict[str, Any]", inner) if isinstance(inner, dict) else override,
        custom_chat_template=pick.text(f"{key}.custom_chat_template"),
        gradient_checkpointing=_checkpointing(config, key, section),
        activation_offload=pick.flag(f"{key}.enable_activation_offload"),
        remove_padding=pick.flag(f"{section}.use_remove_padding", pick.flag(f"{key}.use_remove_padding", True)),
        fused_kernels=pick.flag(f"{key}.use_fused_kernels"),
        liger=pick.flag(f"{key}.use_liger"),
        lora_rank=pick.whole(f"{where}rank", 0) if nested else rank,
        lora_alpha=pick.number(f"{where}alpha" if nested else f"{where}lora_alpha", 16),
        target_modules=pick.words_or_text(f"{where}target_modules", "all-linear"),
        exclude_modules=pick.words_or_text(f"{where}exclude_modules", "") or None,
    )


def _checkpointing(config: Config, key: str, section: str) -> bool:
    if config.engine in ("megatron", "mindspeed"):
        kept = config.pick.mapping(f"{section}.override_transformer_config")
        return kept.get("recompute_granularity") == "full"
    if config.engine == "torchtitan":
        return config.pick.text(f"{section}.activation_checkpoint", "none") != "none"
    return config.pick.flag(f"{key}.enable_gradient_checkpointing", True)


def sharding(config: Config, role: str, section: str) -> Sharding:
    """How ROLE is placed on its GPUs, as its SECTION says."""
    pick = config.pick
    strategy = config.engine if config.engine != "dp" else pick.text(f"{role}.strategy", "fsdp")
    offload = pick.flag(f"{section}.param_offload")
    megatron = config.engine in ("megatron", "mindspeed")
    forward_only = pick.flag(f"{section}.forward_only")
    precision = pick.mapping(f"{section}.mixed_precision")
    computes = pick.dtype(f"{section}.dtype", "bfloat16")
    return Sharding(
        strategy=strategy,
        shard_size=_shard_size(config, section),
        reshard_after_forward=pick.raw(f"{section}.reshard_after_forward") is not False,
        forward_prefetch=pick.flag(f"{section}.forward_prefetch"),
        param_offload=offload,
        # FSDP's gradients go with the parameters; Megatron has a buffer of its own for them.
        grad_offload=pick.flag(f"{section}.grad_offload", offload),
        optimizer_offload=pick.flag(f"{section}.optimizer_offload"),
        cpu_optimizer_share=_cpu_optimizer_share(config, role) if megatron else 0.0,
        # FSDP keeps a model that only reads on the host, whatever the config says (transformer_impl.py).
        offload_policy=pick.flag(f"{section}.offload_policy") or (forward_only and config.engine == "dp"),
        model_dtype=pick.dtype(f"{section}.model_dtype", computes if megatron else "float32"),
        dtype=str(precision.get("param_dtype") or computes),
        reduce_dtype=str(precision.get("reduce_dtype") or "float32"),
        sequence_parallel=_ulysses(config, role, section),
        tensor_parallel=_size(config, section, "tensor_model_parallel_size", "tensor_parallel_size"),
        pipeline_parallel=_size(config, section, "pipeline_model_parallel_size", "pipeline_parallel_size"),
        context_parallel=_size(config, section, "context_parallel_size"),
        expert_parallel=_size(config, section, "expert_model_parallel_size", "expert_parallel_size"),
    )


def _cpu_optimizer_share(config: Config, role: str) -> float:
    """The share of Adam's state that Megatron keeps on the host (its OptimizerConfig, whose share is 0 by default)."""
    given = config.pick.mapping(f"{role}.optim.override_optimizer_config")
    share = given.get("optimizer_offload_fraction", 0.0)
    if given.get("optimizer_cpu_offload") is not True or not isinstance(share, int | float):
        return 0.0
    return min(max(float(share), 0.0), 1.0)


def _shard_size(config: Config, section: str) -> int:
    pick = config.pick
    size = pick.whole(f"{section}.fsdp_size")
    if size is None:
        size = pick.whole(f"{section}.data_parallel_shard_size")
    return -1 if size is None or size <= 0 else size


def _ulysses(config: Config, role: str, section: str) -> int:
    pick = config.pick
    keys = (f"{section}.ulysses_sequence_parallel_size", f"{section}.ulysses_parallel_size")
    return max(1, *(pick.whole(key, 1) for key in (*keys, f"{role}.ulysses_sequence_parallel_size")))


def _size(config: Config, section: str, *names: str) -> int:
    return max(1, *(config.pick.whole(f"{section}.{name}", 1) for name in names))


def optim(config: Config, role: str) -> Optim:
    """The optimizer of ROLE."""
    pick, key = config.pick, f"{role}.optim"
    # OptimizerConfig still takes `optim.grad_clip` and prefers it.
    names = (f"{role}.grad_clip",) if _reads_old_clip(config) else (f"{key}.grad_clip", f"{key}.clip_grad")
    clip = pick.first(pick.number, *names)
    schedule = pick.first(pick.text, f"{key}.warmup_style", f"{key}.lr_scheduler_type", f"{key}.lr_decay_style")
    return Optim(
        name=(pick.text(f"{key}.optimizer") or pick.text(f"{key}.name") or "adamw").lower(),
        lr=pick.number(f"{key}.lr", 1e-6),
        lr_warmup_steps=pick.whole(f"{key}.lr_warmup_steps", -1),
        lr_warmup_steps_ratio=pick.number(f"{key}.lr_warmup_steps_ratio", 0.0),
        lr_scheduler_type=schedule or "constant",
        weight_decay=pick.number(f"{key}.weight_decay", 0.01),
        grad_clip=clip,
    )


def _reads_old_clip(config: Config) -> bool:
    """Whether verl's first workers (fsdp_workers.py, gone in 0.8) train, which read `grad_clip` of the role."""
    chosen = config.pick.text("trainer.use_legacy_worker_impl", "auto")
    return config.engine == "dp" and config.version.startswith("0.7") and chosen != "disable"


def _either(config: Config, section: str, role: str, name: str) -> bool:
    return config.pick.flag(f"{section}.{name}") or config.pick.flag(f"{role}.{name}")


def _micro(config: Config, key: str) -> int | None:
    """The micro batch per GPU; the deprecated key counts those of all GPUs."""
    pick = config.pick
    own = pick.whole(f"{key}_per_gpu")
    total = pick.whole(key)
    if total is not None and (own is None or own == total):
        gpus = pick.whole("trainer.nnodes", 1) * pick.whole("trainer.n_gpus_per_node", 8)
        return max(1, total // max(1, gpus))
    return own


def _inferred(config: Config, key: str, usual: int | None) -> int | None:
    own = _micro(config, key)
    if own is None and usual is not None:
        config.fallbacks.append(f"{key}_per_gpu is not given; {usual} as in training")
    return usual if own is None else own
