"""ROLL: a YAML over dataclasses, which dacite fills and which drops what it does not know (alibaba/ROLL@8eb27cc)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.trainer import UNKNOWN, Refusal, Trainer

_TRAIN, _INFER = "actor_train", "actor_infer"
_FIELDS = {
    "run_dir": "output_dir",
    "experiment": "exp_name",
    "total_steps": "max_steps",
    "save_freq": "save_steps",
    "test_freq": "eval_steps",
    "critic_warmup": "critic_warmup",
    "actor.optim.lr": f"{_TRAIN}.training_args.learning_rate",
    "actor.optim.weight_decay": f"{_TRAIN}.training_args.weight_decay",
    "actor.optim.grad_clip": "max_grad_norm",
    "actor.optim.lr_warmup_steps": f"{_TRAIN}.training_args.warmup_steps",
    "actor.micro_batch_size": f"{_TRAIN}.training_args.per_device_train_batch_size",
    "actor.infer_micro_batch_size": f"{_TRAIN}.infer_batch_size",
    "actor.dynamic_batch": f"{_TRAIN}.use_dynamic_batching_in_train",
    "actor.epochs": "ppo_epochs",
    "actor.use_kl_loss": "use_kl_loss",
    "actor.kl_loss_coef": "kl_loss_coef",
    "actor.entropy_coeff": "entropy_loss_coef",
    "actor.loss_agg_mode": "loss_agg_mode",
    "critic.optim.lr": "critic.training_args.learning_rate",
    "critic.cliprange_value": "value_clip",
    "rollout.temperature": f"{_INFER}.generating_args.temperature",
    "rollout.top_p": f"{_INFER}.generating_args.top_p",
    "rollout.top_k": f"{_INFER}.generating_args.top_k",
    "data.max_prompt_length": "prompt_length",
    "data.max_response_length": "response_length",
    "data.train_batch_size": "rollout_batch_size",
    "algorithm.gamma": "gamma",
    "algorithm.lam": "lambd",
    "algorithm.use_kl_in_reward": "add_token_level_kl",
    "algorithm.kl_coef": "init_kl_coef",
}
_NAMED = {
    "gpus_per_node": f"{_TRAIN}.device_mapping",
    "rollout_gpus_per_node": f"{_INFER}.device_mapping",
    "colocated": f"{_INFER}.device_mapping",
    "actor.model.path": "pretrain",
    "actor.model.gradient_checkpointing": f"{_TRAIN}.model_args.disable_gradient_checkpointing",
    "actor.model.lora_rank": f"{_TRAIN}.model_args.lora_rank",
    "actor.mini_batch_size": f"{_TRAIN}.training_args.gradient_accumulation_steps",
    "actor.clip_ratio": "pg_clip",
    "actor.sharding.strategy": f"{_TRAIN}.strategy_args.strategy_name",
    "actor.sharding.tensor_parallel": f"{_TRAIN}.strategy_args.strategy_config",
    "actor.sharding.dtype": f"{_TRAIN}.model_args.dtype",
    "critic": "adv_estimator",
    "ref": "enable_reference",
    "rollout.name": f"{_INFER}.strategy_args.strategy_name",
    "rollout.memory_utilization": f"{_INFER}.strategy_args.strategy_config",
    "rollout.tensor_parallel": f"{_INFER}.num_gpus_per_worker",
    "data.train_files": f"{_TRAIN}.data_args.file_name",
    "data.val_files": "validation.data_args.file_name",
    "algorithm.adv_estimator": "adv_estimator",
    "loggers": "track_with",
}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_LIST = re.compile(r"list\(range\((\d+),?\s*(\d+)?\)\)")


def _devices(config: Config, role: str) -> set[int] | None:
    """GPUs of ROLE: a list, or `list(range(0, 8))`; more than that is Python that is not run."""
    value = config.pick.raw(f"{role}.device_mapping")
    if isinstance(value, list):
        return {int(one) for one in config.pick.words(f"{role}.device_mapping") if one.isdecimal()}
    found: set[int] = set()
    for part in str(value or "").split("+"):
        matched = _LIST.fullmatch(part.strip())
        literal = re.fullmatch(r"\[([\d,\s]*)\]", part.strip())
        if matched is not None:
            first, last = int(matched[1]), matched[2]
            found |= set(range(first, int(last)) if last else range(first))
        elif literal is not None:
            found |= {int(one) for one in re.findall(r"\d+", literal[1])}
        else:
            return None
    return found


def _gpus(config: Config) -> tuple[Any, Any, Any, Any]:
    """Nodes and GPUs of each that train, then those that generate alone."""
    train, infer, each = _devices(config, _TRAIN), _devices(config, _INFER), config.pick.whole("num_gpus_per_node", 8)
    if not train or infer is None:
        return UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN
    alone = len(infer - train)
    if max(train | infer) < each:
        return 1, len(train), 0, alone
    if each and len(train) % each == 0 and alone % each == 0:
        return len(train) // each, each, alone // each, each if alone else 0
    return UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN


def _derive(config: Config) -> dict[str, Any]:
    pick = config.pick
    nodes, each, apart_nodes, apart = _gpus(config)
    train, infer = _devices(config, _TRAIN), _devices(config, _INFER)
    estimator = pick.text("adv_estimator", "gae")
    engine, settings = pick.text(f"{_INFER}.strategy_args.strategy_name"), pick.mapping(
        f"{_INFER}.strategy_args.strategy_config")  # fmt: skip
    path, clip = pick.text("pretrain"), pick.number("pg_clip", 0.2)
    ranged = pick.flag("use_pg_clip_range")
    tracked = pick.text("track_with")
    found: dict[str, Any] = {
        "nodes": nodes, "gpus_per_node": each, "rollout_nodes": apart_nodes, "rollout_gpus_per_node": apart,
        "device": "cuda",
        "ray_address": "",
        "colocated": UNKNOWN if train is None or infer is None else bool(train & infer),
        "critic": estimator == "gae",
        "ref": pick.flag("enable_reference") or pick.flag("use_kl_loss") or pick.number("init_kl_coef", 0.2) > 0,
        "reward_model": False,
        "loggers": () if tracked is None else (tracked,),
        "algorithm.adv_estimator": {"gae": "gae", "grpo": "grpo"}.get(estimator, UNKNOWN),
        "algorithm.norm_adv_by_std_in_grpo": pick.text("norm_std_type") is not None,
        "algorithm.rollout_is": UNKNOWN,
        "data.train_files": UNKNOWN,
        "data.val_files": UNKNOWN,
        "data.made": "",
        "actor.model.path": pick.text(f"{_TRAIN}.model_args.model_name_or_path") or path or UNKNOWN,
        "actor.model.gradient_checkpointing": not pick.flag(f"{_TRAIN}.model_args.disable_gradient_checkpointing"),
        "actor.model.lora_rank": pick.whole(f"{_TRAIN}.model_args.lora_rank") or 0,
        "actor.clip_ratio": clip,
        "actor.clip_ratio_low": pick.number("pg_clip_low", 0.2) if ranged else clip,
        "actor.clip_ratio_high": pick.number("pg_clip_high", 0.2) if ranged else clip,
        "actor.loss_mode": UNKNOWN,
        "ref.model.path": pick.text("reference.model_args.model_name_or_path") or path or UNKNOWN,
        "ref.shares_actor": False,
        "critic.model.path": pick.text("critic.model_args.model_name_or_path") or pick.text("reward_pretrain") or
        UNKNOWN,
        "rollout.n": pick.whole("num_return_sequences_in_group") or UNKNOWN,
        "rollout.name": engine if engine in ("vllm", "sglang") else UNKNOWN,
        "rollout.mode": "async",
        # vllm_strategy.py and sglang_strategy.py: an engine beside training goes to the host between its turns.
        "rollout.sleeps": UNKNOWN if train is None or infer is None else bool(train & infer),
        "rollout.expert_parallel": UNKNOWN if any("expert" in key for key in settings) else 1,
        "rollout.multi_turn": config.kind == "agentic",
        "rollout.tensor_parallel": settings.get("tensor_parallel_size", pick.whole(f"{_INFER}.num_gpus_per_worker", 1)),
        "rollout.memory_utilization": settings.get("gpu_memory_utilization") or settings.get(
            "mem_fraction_static") or UNKNOWN,
        "rollout.max_model_len": settings.get("max_model_len"),
        "rollout.engine_kwargs": settings,
    }  # fmt: skip
    return found | _roles(config)


def _roles(config: Config) -> dict[str, Any]:
    """Where each model is, and how it makes log-probabilities."""
    pick, found = config.pick, dict[str, Any]()
    for role, at in (("actor", _TRAIN), ("ref", "reference"), ("critic", "critic")):
        found |= {f"{role}.sharding.{name}": value for name, value in _sharding(config, at).items()}
        found[f"{role}.infer_dynamic_batch"] = pick.flag(f"{at}.use_dynamic_batching_in_infer")
        found |= {f"{role}.chunked_logits": False, f"{role}.model.fused_kernels": False}
    return found


def _sharding(config: Config, at: str) -> dict[str, Any]:
    pick, name = config.pick, config.pick.text(f"{at}.strategy_args.strategy_name", "")
    settings = pick.mapping(f"{at}.strategy_args.strategy_config")
    found: dict[str, Any] = {
        "strategy": "megatron" if name.startswith("megatron") else "fsdp2" if name.startswith("fsdp2") else UNKNOWN,
        "dtype": _DTYPES.get(pick.text(f"{at}.model_args.dtype", ""), UNKNOWN),
    }
    megatron, dtype, spread = found["strategy"] == "megatron", found["dtype"], settings.get("fsdp_size", 1)
    offloads = pick.flag("is_offload_states")
    # fsdp2_strategy.py and base_config.py (8eb27cc)
    found |= {
        "model_dtype": dtype if megatron else UNKNOWN,
        "param_offload": offloads, "optimizer_offload": offloads,
        "offload_policy": bool(settings.get("offload_policy", False)),
        "reshard_after_forward": settings.get("reshard_after_forward") is not False,
        "shard_size": spread if isinstance(spread, int) and spread > 1 else -1,
        "cpu_optimizer_share": UNKNOWN if any("cpu_offload" in key for key in settings) else 0.0,
        "sequence_parallel": 1,
    }  # fmt: skip
    for one in ("tensor", "pipeline", "expert"):
        found[f"{one}_parallel"] = settings.get(f"{one}_model_parallel_size", 1)
    return found | {"context_parallel": settings.get("context_parallel_size", 1)}


def _refused(config: Config, spec: RunSpec) -> Iterator[Refusal]:
    """What `__post_init__` of its dataclasses asserts."""
    del spec
    pick = config.pick
    if pick.whole("response_length") is None and pick.whole("sequence_length") is None:
        yield Refusal("response_length", "expected response_length or sequence_length, got neither", lacks=True)
    ratio = pick.number("async_generation_ratio", 0.0)
    if ratio != 0 and pick.whole("generate_opt_level", 1) != 1:
        yield Refusal("generate_opt_level", f"expected 1 with async_generation_ratio, got "
                      f"{pick.whole('generate_opt_level')}")  # fmt: skip
    if 0 < ratio < 1:
        yield Refusal("async_generation_ratio", f"expected 0 or at least 1, got {ratio:g}")
    if pick.flag("is_pure_opd") and pick.flag("use_opd"):
        yield Refusal("use_opd", "expected is_pure_opd or use_opd, got both")
    if pick.flag("profiler_timeline") and pick.flag("profiler_memory"):
        yield Refusal("profiler_memory", "expected profiler_timeline or profiler_memory, got both")
    if (pick.whole("val_sequence_length") is None) != (pick.whole("val_prompt_length") is None):
        key = "val_prompt_length" if pick.whole("val_prompt_length") is not None else "val_sequence_length"
        yield Refusal(key, "expected val_prompt_length and val_sequence_length, got one", lacks=True)
    for role in (_TRAIN, _INFER, "reference", "critic"):
        devices, each = _devices(config, role), pick.whole(f"{role}.num_gpus_per_worker", 1)
        if devices and each > 0 and len(devices) % each:
            yield Refusal(f"{role}.device_mapping", f"expected a multiple of num_gpus_per_worker = {each}, got "
                          f"{len(devices)} GPUs")  # fmt: skip


TRAINER = Trainer(
    name="roll",
    title="ROLL",
    command=re.compile(r"(?!)"),  # its command names a directory and a name, which Hydra looks up
    signs=(),
    kind="rlvr",
    fields=_FIELDS,
    named=_NAMED,
    derive=_derive,
    refused=_refused,
    style="overrides",
    documents=True,
    ignores=True,
    beside=frozenset(("hydra", "defaults")),
    sections={"sft_train": "", "student": "", "chosen_key": "", "train_env_manager": "agentic", "rewards": "rlvr"},
    # Its files hold variables of their own, which their interpolations and those of `defaults` read.
    guessed=frozenset(("rlvr", "agentic")),
)
