"""Fields of `RunSpec` and the keys of the frameworks that set them.

Keys are verl's names, which rltrain shares; `_RLTRAIN` and `_verl` hold where they differ. Checks and advice go through
here, so that a finding names the key that the user can type.
"""

from __future__ import annotations

from typing import Any, cast

from rlcheck.facts.config import ConfigFacts, Place
from rlcheck.measure.config.config import shown
from rlcheck.measure.config.trainer import Trainer
from rlcheck.measure.config.trainers import trainer_of

_A, _R, _C, _G = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic", "actor_rollout_ref.rollout"
_M = "actor_rollout_ref.model"
_MODEL = {
    "path": "path",
    "tokenizer_path": "tokenizer_path",
    "trust_remote_code": "trust_remote_code",
    "override": "override_config",
    "custom_chat_template": "custom_chat_template",
    "gradient_checkpointing": "enable_gradient_checkpointing",
    "activation_offload": "enable_activation_offload",
    "remove_padding": "use_remove_padding",
    "fused_kernels": "use_fused_kernels",
    "liger": "use_liger",
    "lora_rank": "lora_rank",
    "lora_alpha": "lora_alpha",
    "target_modules": "target_modules",
    "exclude_modules": "exclude_modules",
}
_SHARDING = {
    "shard_size": "fsdp_size",
    "reshard_after_forward": "reshard_after_forward",
    "forward_prefetch": "forward_prefetch",
    "param_offload": "param_offload",
    "grad_offload": "grad_offload",
    "optimizer_offload": "optimizer_offload",
    "offload_policy": "offload_policy",
    "model_dtype": "model_dtype",
    "dtype": "dtype",
    "reduce_dtype": "mixed_precision",
    "sequence_parallel": "ulysses_sequence_parallel_size",
}
_OPTIM = {
    "name": "optimizer",
    "lr": "lr",
    "lr_warmup_steps": "lr_warmup_steps",
    "lr_warmup_steps_ratio": "lr_warmup_steps_ratio",
    "lr_scheduler_type": "lr_scheduler_type",
    "weight_decay": "weight_decay",
    "grad_clip": "clip_grad",
}
_MEGATRON = {
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "context_parallel": "context_parallel_size",
    "expert_parallel": "expert_model_parallel_size",
    "param_offload": "param_offload",
    "grad_offload": "param_offload",
    "optimizer_offload": "optimizer_offload",
    "dtype": "dtype",
    "model_dtype": "dtype",
}
_TRAINED = {
    "mini_batch_size": "ppo_mini_batch_size",
    "micro_batch_size": "ppo_micro_batch_size_per_gpu",
    "dynamic_batch": "use_dynamic_bsz",
    "max_tokens": "ppo_max_token_len_per_gpu",
    "epochs": "ppo_epochs",
    "loss_agg_mode": "loss_agg_mode",
    "save_contents": "checkpoint.save_contents",
}
_ACTOR = {
    "clip_ratio": "clip_ratio",
    "clip_ratio_low": "clip_ratio_low",
    "clip_ratio_high": "clip_ratio_high",
    "clip_ratio_c": "clip_ratio_c",
    "entropy_coeff": "entropy_coeff",
    "calculate_entropy": "calculate_entropy",
    "use_kl_loss": "use_kl_loss",
    "kl_loss_coef": "kl_loss_coef",
    "loss_mode": "policy_loss.loss_mode",
    "torch_compile": "use_torch_compile",
}
_ROLLOUT = {
    "name": "name",
    "mode": "mode",
    "n": "n",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "dtype": "dtype",
    "memory_utilization": "gpu_memory_utilization",
    "enforce_eager": "enforce_eager",
    "sleeps": "free_cache_engine",
    "tensor_parallel": "tensor_model_parallel_size",
    "data_parallel": "data_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "expert_parallel": "expert_parallel_size",
    "max_batched_tokens": "max_num_batched_tokens",
    "max_seqs": "max_num_seqs",
    "max_model_len": "max_model_len",
    "chunked_prefill": "enable_chunked_prefill",
    "prefix_caching": "enable_prefix_caching",
    "load_format": "load_format",
    "calculate_log_probs": "calculate_log_probs",
    "quantization": "quantization",
    "layered_summon": "layered_summon",
    "multi_turn": "multi_turn.enable",
    "sync_bucket_bytes": "checkpoint_engine.update_weights_bucket_megabytes",
    "val_temperature": "val_kwargs.temperature",
    "val_n": "val_kwargs.n",
    "val_do_sample": "val_kwargs.do_sample",
}
_DATA = {
    "train_files": "train_files",
    "val_files": "val_files",
    "prompt_key": "prompt_key",
    "source_key": "reward_fn_key",
    "max_prompt_length": "max_prompt_length",
    "max_response_length": "max_response_length",
    "train_batch_size": "train_batch_size",
    "filter_overlong_prompts": "filter_overlong_prompts",
    "truncation": "truncation",
    "template_kwargs": "apply_chat_template_kwargs",
    "train_max_samples": "train_max_samples",
}
_ALGORITHM = {
    "adv_estimator": "adv_estimator",
    "gamma": "gamma",
    "lam": "lam",
    "use_kl_in_reward": "use_kl_in_reward",
    "kl_coef": "kl_ctrl.kl_coef",
    "kl_ctrl_type": "kl_ctrl.type",
    "norm_adv_by_std_in_grpo": "norm_adv_by_std_in_grpo",
    "rollout_is": "rollout_correction.rollout_is",
    "bypass_mode": "rollout_correction.bypass_mode",
}


def _under(prefix: str, section: str, names: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}.{field}": f"{section}.{name}" for field, name in names.items()}


FIELDS: dict[str, str] = {
    "nodes": "trainer.nnodes",
    "gpus_per_node": "trainer.n_gpus_per_node",
    "device": "trainer.device",
    "colocated": "actor_rollout_ref.hybrid_engine",
    "rollout_nodes": f"{_G}.nnodes",
    "rollout_gpus_per_node": f"{_G}.n_gpus_per_node",
    "actor": _A,
    "ref": _R,
    "critic": "critic.enable",
    "rollout": _G,
    "reward_model": "reward.reward_model.enable",
    "loggers": "trainer.logger",
    "save_freq": "trainer.save_freq",
    "test_freq": "trainer.test_freq",
    "val_before_train": "trainer.val_before_train",
    "total_epochs": "trainer.total_epochs",
    "total_steps": "trainer.total_training_steps",
    "critic_warmup": "trainer.critic_warmup",
    "run_dir": "trainer.default_local_dir",
    "project": "trainer.project_name",
    "experiment": "trainer.experiment_name",
    "ray_address": "ray_kwargs.ray_init.address",
    **_under("actor.model", _M, _MODEL),
    **_under("ref.model", _M, _MODEL),
    **_under("critic.model", "critic.model", _MODEL),
    **_under("actor.sharding", f"{_A}.fsdp_config", _SHARDING),
    **_under("ref.sharding", f"{_R}.fsdp_config", _SHARDING),
    **_under("critic.sharding", "critic.fsdp", _SHARDING),
    "actor.sharding.strategy": f"{_A}.strategy",
    "ref.sharding.strategy": f"{_R}.strategy",
    "critic.sharding.strategy": "critic.strategy",
    **_under("actor.optim", f"{_A}.optim", _OPTIM),
    **_under("critic.optim", "critic.optim", _OPTIM),
    **_under("actor", _A, {**_TRAINED, **_ACTOR}),
    **_under("critic", _C, {**_TRAINED, "cliprange_value": "cliprange_value"}),
    "actor.infer_micro_batch_size": f"{_G}.log_prob_micro_batch_size_per_gpu",
    "actor.infer_dynamic_batch": f"{_G}.log_prob_use_dynamic_bsz",
    "actor.infer_max_tokens": f"{_G}.log_prob_max_token_len_per_gpu",
    "ref.infer_micro_batch_size": f"{_R}.log_prob_micro_batch_size_per_gpu",
    "ref.infer_dynamic_batch": f"{_R}.log_prob_use_dynamic_bsz",
    "ref.infer_max_tokens": f"{_R}.log_prob_max_token_len_per_gpu",
    "ref.torch_compile": f"{_R}.use_torch_compile",
    "critic.infer_micro_batch_size": "critic.forward_micro_batch_size_per_gpu",
    "critic.infer_dynamic_batch": "critic.use_dynamic_bsz",
    "critic.infer_max_tokens": "critic.forward_max_token_len_per_gpu",
    "actor.chunked_logits": f"{_A}.fsdp_config.entropy_from_logits_with_chunking",
    "actor.chunk_tokens": f"{_A}.fsdp_config.entropy_from_logits_chunk_size",
    "actor.entropy_checkpointing": f"{_A}.fsdp_config.entropy_checkpointing",
    "ref.chunked_logits": f"{_R}.fsdp_config.entropy_from_logits_with_chunking",
    "ref.chunk_tokens": f"{_R}.fsdp_config.entropy_from_logits_chunk_size",
    **_under("rollout", _G, _ROLLOUT),
    **_under("data", "data", _DATA),
    **_under("algorithm", "algorithm", _ALGORITHM),
    "reward.function_path": "reward.custom_reward_function.path",
    "reward.function_name": "reward.custom_reward_function.name",
    "reward.manager": "reward.reward_manager.name",
    "reward.endpoints": "reward.sandbox_fusion.url",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.sharding.tensor_parallel": "reward.reward_model.rollout.tensor_model_parallel_size",
    "reward_model.engine.memory_utilization": "reward.reward_model.rollout.gpu_memory_utilization",
    "reward_model.engine.name": "reward.reward_model.rollout.name",
    "reward_model.own_gpus": "reward.reward_model.n_gpus_per_node",
}
# rltrain's own names; "" where it has no such key.
_RLTRAIN: dict[str, str] = {
    "actor.optim.grad_clip": f"{_A}.grad_clip",
    "critic.optim.grad_clip": "critic.grad_clip",
    **{f"critic.sharding.{field}": f"critic.fsdp_config.{name}" for field, name in _SHARDING.items()},
    "actor.infer_dynamic_batch": f"{_A}.use_dynamic_bsz",
    "actor.infer_max_tokens": f"{_A}.ppo_max_token_len_per_gpu",
    "ref.infer_dynamic_batch": f"{_A}.use_dynamic_bsz",
    "ref.infer_max_tokens": f"{_A}.ppo_max_token_len_per_gpu",
    "critic.infer_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
    "critic.infer_max_tokens": "critic.ppo_max_token_len_per_gpu",
    "ray_address": "ray_kwargs.ray_init",
    "reward": "reward_model.rules",
    "reward.rules": "reward_model.rules",
    "reward.function_path": "custom_reward_function.path",
    "reward.function_name": "custom_reward_function.name",
    "reward_model": "reward_model.enable",
    "reward_model.model.path": "reward_model.model.path",
    "reward_model.infer_micro_batch_size": "reward_model.micro_batch_size_per_gpu",
    **_under("reward_model.sharding", "reward_model.fsdp_config", _SHARDING),
}


def key_of(facts: ConfigFacts, field: str) -> str:
    """The framework's key for FIELD of the spec; "" if it has none; for a spec file the field itself.

    >>> key_of(ConfigFacts(framework="verl"), "actor.micro_batch_size")
    'actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu'
    """
    if facts.framework == "spec":
        return field
    trainer = trainer_of(facts.framework)
    if trainer is not None:
        return _others(trainer, facts, field)
    if facts.framework == "rltrain":
        key = _RLTRAIN.get(field, FIELDS.get(field, ""))
        return key if not key or has_key(facts, key) else ""
    return _verl(facts, field)


def _others(trainer: Trainer, facts: ConfigFacts, field: str) -> str:
    """The key of another trainer; the one of an earlier generation of keys where the config has that, if any."""
    key = trainer.fields.get(field) or trainer.named.get(field, "")
    old = next((old for old, new in trainer.moved.items() if new == key and old in facts.values), "")
    return old or (key if key not in trainer.moved.values() or key in facts.values else "")


def can_set(facts: ConfigFacts, field: str) -> bool:
    """Whether there is a key that takes the value of FIELD as it is; of other trainers, some keys have another unit."""
    trainer = trainer_of(facts.framework)
    return trainer is None or field in trainer.fields or field in facts.values


def has_key(facts: ConfigFacts, key: str) -> bool:
    """Whether the framework has KEY: a key, or a section. True where its keys are not known."""
    return not facts.values or key in facts.values or any(name.startswith(f"{key}.") for name in facts.values)


def _verl(facts: ConfigFacts, field: str) -> str:
    role, _, rest = field.partition(".")
    sections = {"actor": _A, "ref": _R, "critic": _C}
    if facts.spec.actor.sharding.strategy == "megatron" and role in sections and rest.startswith("sharding."):
        name = _MEGATRON.get(rest.removeprefix("sharding."))
        return (
            f"{sections[role]}.megatron.{name}" if name else FIELDS.get(field, "") if rest.endswith("strategy") else ""
        )
    key = FIELDS.get(field, "")
    if key.endswith(".optim.clip_grad") and facts.version.startswith("0.7"):
        # verl's first workers read it from the role, unless the newer ones are asked for.
        newer = facts.values.get("trainer.use_legacy_worker_impl") == "disable"
        return key if newer or not facts.values else f"{sections[role]}.grad_clip"
    if key.startswith("critic.fsdp.") and "critic.model.fsdp_config.fsdp_size" in facts.values:
        return f"critic.model.fsdp_config.{key.removeprefix('critic.fsdp.')}"
    return key


def place_of(facts: ConfigFacts, field_or_key: str) -> str:
    """Where it was given: `run.yaml:12:5`, `override a.b=4`, or `default`."""
    key = field_or_key
    if key not in facts.given and key not in facts.values:
        key = key_of(facts, field_or_key) or field_or_key
    found = facts.given.get(key)
    if found is None:
        parts = key.split(".")
        above = (facts.given.get(".".join(parts[:length])) for length in range(len(parts) - 1, 0, -1))
        found = next((place for place in above if place is not None and place.text), None)
    return told(found)


def told(place: Place | None) -> str:
    """PLACE in words."""
    if place is None or not (place.file or place.text):
        return "default"
    return f"{place.file}:{place.line}:{place.column}" if place.file else f"override {place.text}"


def override(facts: ConfigFacts, field: str, value: object) -> str:
    """What to type to set FIELD (or a key of the framework) to VALUE; keys that verl's YAML lacks get a `+`."""
    key = key_of(facts, field) or field
    if key.endswith("_megabytes") and field.endswith("_bytes") and isinstance(value, int):
        value = max(1, value >> 20)
    trainer = trainer_of(facts.framework)
    if trainer is not None and trainer.style == "options":
        return f"--{key} {_typed(value)}"
    plus = "+" if facts.framework == "verl" and facts.values and not has_key(facts, key) else ""
    return f"{plus}{key}={_typed(value)}"


def _typed(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(_typed(item) for item in cast('list[object]', value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    text = shown(value)
    return f"'{text}'" if isinstance(value, str) and any(sign in text for sign in " ,[]{}=") else text


def actual(facts: ConfigFacts, field: str) -> Any:
    """The spec's value of FIELD, a dotted path; None where a role on the way is not there."""
    value: Any = facts.spec
    for part in field.split("."):
        if value is None:
            return None
        value = getattr(value, part)
    return value
