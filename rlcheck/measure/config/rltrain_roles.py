"""An rltrain config in the words of `RunSpec`: what `rltrain.config.resolve` makes of null, for a machine with GPUs."""

from __future__ import annotations

from typing import Any, cast

from rlcheck.facts.config import (
    DataSpec,
    ModelUse,
    Optim,
    RewardSpec,
    RoleSpec,
    RolloutSpec,
    RunSpec,
    Sharding,
)
from rlcheck.measure.config.algorithms import algorithm_of
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.estimators import needs
from rlcheck.measure.config.rltrain_data import micro_batch

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
# Samples in one pass where the config names no micro batch (rltrain.config.resolve).


def spec_of(config: Config) -> RunSpec:
    """What CONFIG asks for; `config.fallbacks` says what was assumed where it leaves something open."""
    pick = config.pick
    device = pick.text("trainer.device", "auto")
    if device == "auto":
        device = "cuda"
        config.fallbacks.append("trainer.device=auto: taken as cuda")
    actor = _actor(config, device)
    algorithm = algorithm_of(config)
    enabled = pick.raw("critic.enable")
    needs_critic = bool(enabled) if enabled is not None else needs(algorithm.adv_estimator, "critic")
    hybrid = pick.flag("actor_rollout_ref.hybrid_engine", True)
    return RunSpec(
        nodes=pick.whole("trainer.nnodes", 1),
        gpus_per_node=_gpus(config, device),
        device=device,
        colocated=hybrid,
        rollout_nodes=0 if hybrid else pick.whole(f"{ROLLOUT}.nnodes", 0),
        rollout_gpus_per_node=0 if hybrid else pick.whole(f"{ROLLOUT}.n_gpus_per_node", 0),
        actor=actor,
        ref=_ref(config, actor, device) if algorithm.use_kl_in_reward or actor.use_kl_loss else None,
        critic=_critic(config, actor, device) if needs_critic else None,
        reward_model=_reward_model(config, device),
        rollout=_rollout(config, device),
        data=_data(config),
        algorithm=algorithm,
        reward=RewardSpec(
            rules=_rules(pick.raw("reward_model.rules")),
            function_path=pick.text("custom_reward_function.path"),
            function_name=pick.text("custom_reward_function.name", "compute_score"),
        ),
        loggers=pick.words("trainer.logger"),
        save_freq=pick.whole("trainer.save_freq", -1),
        test_freq=pick.whole("trainer.test_freq", -1),
        val_before_train=pick.flag("trainer.val_before_train", True),
        total_epochs=pick.whole("trainer.total_epochs", 30),
        total_steps=pick.whole("trainer.total_training_steps"),
        critic_warmup=pick.whole("trainer.critic_warmup", 0),
        run_dir=pick.text("trainer.default_local_dir", ""),
        project=pick.text("trainer.project_name", ""),
        experiment=pick.text("trainer.experiment_name", ""),
        ray_address=str(pick.mapping("ray_kwargs.ray_init").get("address") or ""),
    )


def _rules(value: Any) -> tuple[dict[str, Any], ...]:
    rules = cast("list[Any]", value) if isinstance(value, list) else []
    return tuple(cast("dict[str, Any]", rule) for rule in rules if isinstance(rule, dict))


def _gpus(config: Config, device: str) -> int:
    pick = config.pick
    found = pick.whole("trainer.n_gpus_per_node")
    if found is None and device == "cpu":
        return pick.whole("trainer.num_cpu_ranks", 1)
    if found is None:
        config.fallbacks.append("trainer.n_gpus_per_node=null: 1 assumed; a run takes all GPUs of its machine")
    return found or 1


def _actor(config: Config, device: str) -> RoleSpec:
    pick = config.pick
    mini = pick.whole(f"{ACTOR}.ppo_mini_batch_size", 256)
    micro = pick.whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu") or _micro_batch(config, mini, device)
    infer = pick.whole(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu")
    if infer is None:
        config.fallbacks.append(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=null: {micro}, the actor's micro batch")
    clip = pick.number(f"{ACTOR}.clip_ratio", 0.2)
    dynamic, most = pick.flag(f"{ACTOR}.use_dynamic_bsz"), pick.whole(f"{ACTOR}.ppo_max_token_len_per_gpu", 16384)
    return RoleSpec(
        name="actor",
        model=_model(config, MODEL),
        sharding=_sharding(config, f"{ACTOR}.fsdp_config", device),
        optim=_optim(config, ACTOR),
        mini_batch_size=mini,
        micro_batch_size=micro,
        dynamic_batch=dynamic,
        max_tokens=most,
        infer_micro_batch_size=infer or micro,
        infer_dynamic_batch=dynamic,
        infer_max_tokens=most,
        epochs=pick.whole(f"{ACTOR}.ppo_epochs", 1),
        chunked_logits=pick.flag(f"{ACTOR}.fsdp_config.entropy_from_logits_with_chunking", True),
        torch_compile=pick.flag(f"{ACTOR}.use_torch_compile"),
        clip_ratio=clip,
        clip_ratio_low=pick.number(f"{ACTOR}.clip_ratio_low") or clip,
        clip_ratio_high=pick.number(f"{ACTOR}.clip_ratio_high") or clip,
        clip_ratio_c=pick.number(f"{ACTOR}.clip_ratio_c"),
        entropy_coeff=pick.number(f"{ACTOR}.entropy_coeff", 0.0),
        calculate_entropy=True,
        use_kl_loss=pick.flag(f"{ACTOR}.use_kl_loss"),
        kl_loss_coef=pick.number(f"{ACTOR}.kl_loss_coef", 0.001),
        loss_agg_mode=pick.text(f"{ACTOR}.loss_agg_mode", "token-mean"),
        loss_mode=pick.text(f"{ACTOR}.policy_loss.loss_mode", "vanilla"),
    )


def _micro_batch(config: Config, mini: int, device: str) -> int:
    """The largest size that cuts a rank's share without a rest and is not too large for the device."""
    pick = config.pick
    ranks = max(1, pick.whole("trainer.nnodes", 1) * (pick.whole("trainer.n_gpus_per_node") or 1))
    shard = max(1, -(-mini * pick.whole(f"{ROLLOUT}.n", 1) // ranks))
    found = micro_batch(shard, device)
    config.fallbacks.append(f"{ACTOR}.ppo_micro_batch_size_per_gpu=null: {found}")
    return found


def _ref(config: Config, actor: RoleSpec, device: str) -> RoleSpec:
    own = config.pick.whole(f"{REF}.log_prob_micro_batch_size_per_gpu")
    if own is None:
        config.fallbacks.append(
            f"{REF}.log_prob_micro_batch_size_per_gpu=null: {actor.micro_batch_size}, the actor's micro batch"
        )
    return RoleSpec(
        name="ref",
        trained=False,
        model=actor.model,
        sharding=_sharding(config, f"{REF}.fsdp_config", device),
        infer_micro_batch_size=own or actor.micro_batch_size,
        infer_dynamic_batch=actor.dynamic_batch,
        infer_max_tokens=actor.max_tokens,
        chunked_logits=config.pick.flag(f"{REF}.fsdp_config.entropy_from_logits_with_chunking", True),
    )


def _critic(config: Config, actor: RoleSpec, device: str) -> RoleSpec:
    pick = config.pick
    own = _model(config, "critic.model", actor.model.remove_padding)
    if own.path is None:
        own = _with_actors(own, actor.model)
        config.fallbacks.append("critic.model.path=null: the actor's model with a value head")
    dynamic = pick.raw("critic.use_dynamic_bsz")
    micro = pick.whole("critic.ppo_micro_batch_size_per_gpu") or actor.micro_batch_size
    filled = actor.dynamic_batch if dynamic is None else bool(dynamic)
    most = pick.whole("critic.ppo_max_token_len_per_gpu") or actor.max_tokens
    return RoleSpec(
        name="critic",
        model=own,
        sharding=_sharding(config, "critic.fsdp_config", device),
        optim=_optim(config, "critic"),
        mini_batch_size=pick.whole("critic.ppo_mini_batch_size") or actor.mini_batch_size,
        micro_batch_size=micro,
        dynamic_batch=filled,
        max_tokens=most,
        infer_micro_batch_size=micro,
        infer_dynamic_batch=filled,
        infer_max_tokens=most,
        epochs=pick.whole("critic.ppo_epochs") or actor.epochs,
        cliprange_value=pick.number("critic.cliprange_value", 0.5),
        loss_agg_mode=pick.text("critic.loss_agg_mode") or actor.loss_agg_mode,
    )


def _with_actors(own: ModelUse, actors: ModelUse) -> ModelUse:
    return ModelUse(
        path=actors.path,
        tokenizer_path=actors.tokenizer_path,
        trust_remote_code=actors.trust_remote_code,
        override={**actors.override, **own.override},
        custom_chat_template=own.custom_chat_template,
        gradient_checkpointing=own.gradient_checkpointing,
        remove_padding=own.remove_padding,
    )


def _reward_model(config: Config, device: str) -> RoleSpec | None:
    pick = config.pick
    if not pick.flag("reward_model.enable"):
        return None
    return RoleSpec(
        name="reward_model",
        trained=False,
        model=_model(config, "reward_model.model"),
        sharding=_sharding(config, "reward_model.fsdp_config", device),
        infer_micro_batch_size=pick.whole("reward_model.micro_batch_size_per_gpu", 8),
    )


def _model(config: Config, key: str, packed: bool = True) -> ModelUse:
    pick = config.pick
    path = pick.text(f"{key}.path")
    return ModelUse(
        path=path,
        tokenizer_path=pick.text(f"{key}.tokenizer_path") or path,
        trust_remote_code=pick.flag(f"{key}.trust_remote_code"),
        override=pick.mapping(f"{key}.override_config"),
        custom_chat_template=pick.text(f"{key}.custom_chat_template"),
        gradient_checkpointing=pick.flag(f"{key}.enable_gradient_checkpointing", True),
        remove_padding=pick.flag(f"{key}.use_remove_padding", packed),
        fused_kernels=key == MODEL and pick.flag(f"{key}.use_fused_kernels", True),
    )


def _sharding(config: Config, key: str, device: str) -> Sharding:
    pick = config.pick
    size = pick.whole(f"{key}.fsdp_size", -1)
    return Sharding(
        strategy="fsdp2",
        shard_size=size if size > 0 else -1,
        reshard_after_forward=pick.flag(f"{key}.reshard_after_forward", True),
        param_offload=pick.flag(f"{key}.param_offload"),
        optimizer_offload=pick.flag(f"{key}.optimizer_offload"),
        offload_policy=pick.flag(f"{key}.offload_policy"),
        model_dtype=_precision(config, f"{key}.model_dtype", device),
        dtype=_precision(config, f"{key}.dtype", device),
    )


def _precision(config: Config, key: str, device: str) -> str:
    found = config.pick.dtype(key, "auto")
    return ("bfloat16" if device == "cuda" else "float32") if found == "auto" else found


def _optim(config: Config, role: str) -> Optim:
    pick, key = config.pick, f"{role}.optim"
    return Optim(
        lr=pick.number(f"{key}.lr", 1e-6),
        lr_warmup_steps=pick.whole(f"{key}.lr_warmup_steps", -1),
        lr_warmup_steps_ratio=pick.number(f"{key}.lr_warmup_steps_ratio", 0.0),
        lr_scheduler_type=pick.text(f"{key}.lr_scheduler_type", "constant"),
        weight_decay=pick.number(f"{key}.weight_decay", 0.01),
        grad_clip=pick.number(f"{role}.grad_clip"),
    )


def _rollout(config: Config, device: str) -> RolloutSpec:
    pick, key = config.pick, ROLLOUT
    name = pick.text(f"{key}.name", "")
    length = pick.whole(f"{key}.max_model_len")
    if length is None:
        length = pick.whole("data.max_prompt_length", 512) + pick.whole("data.max_response_length", 512)
        config.fallbacks.append(f"{key}.max_model_len=null: {length}, the longest prompt and response")
    arguments: dict[str, Any] = {}
    for engine, inner in pick.mapping(f"{key}.engine_kwargs").items():
        if engine == name and isinstance(inner, dict):
            arguments = dict(inner)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return RolloutSpec(
        name=name,
        n=pick.whole(f"{key}.n", 1),
        temperature=pick.number(f"{key}.temperature", 1.0),
        top_p=pick.number(f"{key}.top_p", 1.0),
        top_k=pick.whole(f"{key}.top_k", -1),
        dtype=_precision(config, f"{key}.dtype", device),
        memory_utilization=pick.number(f"{key}.gpu_memory_utilization", 0.5),
        enforce_eager=pick.flag(f"{key}.enforce_eager"),
        sleeps=pick.flag(f"{key}.free_cache_engine", True),
        tensor_parallel=pick.whole(f"{key}.tensor_model_parallel_size", 1),
        max_batched_tokens=pick.whole(f"{key}.max_num_batched_tokens", 8192),
        max_seqs=pick.whole(f"{key}.max_num_seqs", 1024),
        max_model_len=length,
        chunked_prefill=pick.flag(f"{key}.enable_chunked_prefill", True),
        prefix_caching=pick.flag(f"{key}.enable_prefix_caching", True),
        calculate_log_probs=pick.flag(f"{key}.calculate_log_probs", True),
        sync_bucket_bytes=pick.whole(f"{key}.checkpoint_engine.update_weights_bucket_megabytes", 512) << 20,
        val_temperature=pick.number(f"{key}.val_kwargs.temperature", 0.0),
        val_n=pick.whole(f"{key}.val_kwargs.n", 1),
        val_do_sample=pick.flag(f"{key}.val_kwargs.do_sample"),
        engine_kwargs=arguments,
    )


def _data(config: Config) -> DataSpec:
    pick = config.pick
    files, val = pick.words("data.train_files"), pick.words("data.val_files")
    task = pick.text("toy.task") if any(key.startswith("toy.") for key in config.values) else None
    made = f"{pick.whole('toy.num_train', 4096)} rows of the toy task {task}" if task is not None and not files else ""
    return DataSpec(
        train_files=files,
        val_files=val,
        prompt_key=pick.text("data.prompt_key", "prompt"),
        source_key=pick.text("data.reward_fn_key", "data_source"),
        max_prompt_length=pick.whole("data.max_prompt_length", 512),
        max_response_length=pick.whole("data.max_response_length", 512),
        train_batch_size=pick.whole("data.train_batch_size", 1024),
        filter_overlong_prompts=pick.flag("data.filter_overlong_prompts"),
        truncation=pick.text("data.truncation", "error"),
        template_kwargs=pick.mapping("data.apply_chat_template_kwargs"),
        made=made,
        train_max_samples=pick.whole("data.train_max_samples", -1),
    )
