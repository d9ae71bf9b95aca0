"""NeMo-RL: a YAML over those that its `defaults` names, with Hydra's overrides (NVIDIA-NeMo/RL@7ea279a)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.trainer import UNKNOWN, Refusal, Trainer

_FIELDS = {
    "actor.model.path": "policy.model_name",
    "actor.model.tokenizer_path": "policy.tokenizer.name",
    "actor.model.override": "policy.hf_config_overrides",
    "actor.micro_batch_size": "policy.train_micro_batch_size",
    "actor.infer_micro_batch_size": "policy.logprob_batch_size",
    "actor.sharding.dtype": "policy.precision",
    "actor.clip_ratio_low": "loss_fn.ratio_clip_min",
    "actor.clip_ratio_high": "loss_fn.ratio_clip_max",
    "actor.clip_ratio": "loss_fn.ratio_clip_min",
    "actor.clip_ratio_c": "loss_fn.ratio_clip_c",
    "actor.kl_loss_coef": "loss_fn.reference_policy_kl_penalty",
    "critic.model.path": "value.model_name",
    "critic.micro_batch_size": "value.train_micro_batch_size",
    "critic.sharding.dtype": "value.precision",
    "rollout.name": "policy.generation.backend",
    "rollout.temperature": "policy.generation.temperature",
    "rollout.top_p": "policy.generation.top_p",
    "rollout.val_temperature": "policy.generation.val_temperature",
    "data.max_response_length": "policy.generation.max_new_tokens",
    "run_dir": "checkpointing.checkpoint_dir",
    "project": "logger.wandb.project",
    "experiment": "logger.wandb.name",
}
_NAMED = {
    "nodes": "cluster.num_nodes",
    "gpus_per_node": "cluster.gpus_per_node",
    "colocated": "policy.generation.colocated.enabled",
    "rollout_nodes": "policy.generation.colocated.resources.num_nodes",
    "rollout_gpus_per_node": "policy.generation.colocated.resources.gpus_per_node",
    "actor.mini_batch_size": "policy.train_global_batch_size",
    "actor.dynamic_batch": "policy.dynamic_batching.enabled",
    "actor.max_tokens": "policy.sequence_packing.train_mb_tokens",
    "actor.model.gradient_checkpointing": "policy.dtensor_cfg.activation_checkpointing",
    "actor.model.lora_rank": "policy.dtensor_cfg.lora_cfg.dim",
    "actor.sharding.tensor_parallel": "policy.dtensor_cfg.tensor_parallel_size",
    "actor.sharding.context_parallel": "policy.dtensor_cfg.context_parallel_size",
    "actor.sharding.pipeline_parallel": "policy.megatron_cfg.pipeline_model_parallel_size",
    "actor.sharding.expert_parallel": "policy.megatron_cfg.expert_model_parallel_size",
    "actor.optim.lr": "policy.optimizer.kwargs",
    "actor.optim.weight_decay": "policy.optimizer.kwargs",
    "actor.optim.grad_clip": "policy.max_grad_norm",
    "critic.optim.lr": "value.optimizer.kwargs",
    "actor.loss_agg_mode": "loss_fn.token_level_loss",
    "actor.use_kl_loss": "loss_fn.use_kl_in_reward",
    "algorithm.adv_estimator": "grpo.adv_estimator.name",
    "algorithm.use_kl_in_reward": "loss_fn.use_kl_in_reward",
    "algorithm.norm_adv_by_std_in_grpo": "grpo.normalize_rewards",
    "algorithm.rollout_is": "loss_fn.use_importance_sampling_correction",
    "rollout.n": "grpo.num_generations_per_prompt",
    "rollout.memory_utilization": "policy.generation.vllm_cfg.gpu_memory_utilization",
    "rollout.tensor_parallel": "policy.generation.vllm_cfg.tensor_parallel_size",
    "rollout.pipeline_parallel": "policy.generation.vllm_cfg.pipeline_parallel_size",
    "rollout.expert_parallel": "policy.generation.vllm_cfg.expert_parallel_size",
    "rollout.max_model_len": "policy.generation.vllm_cfg.max_model_len",
    "rollout.enforce_eager": "policy.generation.vllm_cfg.enforce_eager",
    "rollout.top_k": "policy.generation.top_k",
    "data.train_batch_size": "grpo.num_prompts_per_step",
    "data.train_files": "data.train.data_path",
    "data.val_files": "data.validation.data_path",
    "total_epochs": "grpo.max_num_epochs",
    "total_steps": "grpo.max_num_steps",
    "save_freq": "checkpointing.save_period",
    "test_freq": "grpo.val_period",
}
_LACKS = frozenset((
    "actor.model.trust_remote_code", "actor.model.remove_padding", "actor.sharding.offload_policy",
    "rollout.sleeps",
))  # fmt: skip


def _algorithm(config: Config) -> str:
    """The section of the algorithm."""
    return "ppo" if config.kind == "ppo" else "grpo"


def _is_on(config: Config, key: str) -> bool:
    return config.pick.flag(f"{key}.enabled")


def _gpus(config: Config) -> tuple[Any, Any, Any, Any]:
    """Nodes and GPUs of each that train, and those that only generate (0 nodes: beside those that train)."""
    pick, at = config.pick, "policy.generation.colocated"
    nodes, each = pick.whole("cluster.num_nodes"), pick.whole("cluster.gpus_per_node")
    together = _together(config)
    takes_more = _takes_gpus(pick.raw("env")) or any(key.startswith("on_policy_distillation") for key in config.given)
    if nodes is None or each is None or together is UNKNOWN or takes_more:
        return UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN
    if together:
        return nodes, each, 0, 0
    own, own_nodes = pick.whole(f"{at}.resources.gpus_per_node"), pick.whole(f"{at}.resources.num_nodes")
    if nodes == 1 and own is not None and own < each:
        return 1, each - own, 0, own
    if nodes > 1 and own_nodes is not None and 0 < own_nodes < nodes:
        return nodes - own_nodes, each, own_nodes, each
    return UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN


def _together(config: Config) -> Any:
    """Whether engines share the GPUs that train: until 0.3.0 they did, and no key said so."""
    told = config.pick.raw("policy.generation.colocated.enabled")
    if told is None and config.pick.raw("policy.generation.backend") is not None:
        return True
    return _known(told)


def _takes_gpus(env: Any) -> bool:
    """Whether an environment has GPUs of its own, such as a reward model or a judge."""
    section = cast("dict[str, Any]", env) if isinstance(env, dict) else {}
    own = ("reward_model", "resources", "num_gpu_nodes", "gpus_per_node")
    return any(name in own or _takes_gpus(value) for name, value in section.items())


def _derive(config: Config) -> dict[str, Any]:
    pick, own = config.pick, _algorithm(config)
    nodes, each, apart_nodes, apart = _gpus(config)
    penalty, in_reward = pick.number("loss_fn.reference_policy_kl_penalty"), pick.flag("loss_fn.use_kl_in_reward")
    skips = pick.flag(f"{own}.skip_reference_policy_logprobs_calculation")
    loggers = [name for name in ("wandb", "swanlab", "tensorboard", "mlflow") if pick.flag(f"logger.{name}_enabled")]
    return {
        "nodes": nodes, "gpus_per_node": each, "rollout_nodes": apart_nodes, "rollout_gpus_per_node": apart,
        "device": "cuda",
        "ray_address": "",
        "colocated": _together(config),
        "ref": bool(penalty) and not skips,
        "critic": own == "ppo",
        "reward_model": False,
        "loggers": tuple(loggers),
        "total_epochs": _known(pick.whole(f"{own}.max_num_epochs")),
        "total_steps": pick.whole(f"{own}.max_num_steps"),
        "save_freq": _known(pick.whole("checkpointing.save_period")) if _is_on(config, "checkpointing") else -1,
        "test_freq": _known(pick.whole(f"{own}.val_period")),
        "val_before_train": pick.flag(f"{own}.val_at_start"),
        "critic_warmup": pick.whole("ppo.policy_training_start_step", 0),
        "algorithm.adv_estimator": {"grpo": "grpo", "gae": "gae", "reinforce_plus_plus": "reinforce_plus_plus"}.get(
            pick.text(f"{own}.adv_estimator.name", "gae" if own == "ppo" else "grpo"), UNKNOWN),
        "algorithm.gamma": pick.number("ppo.adv_estimator.gae_gamma", 1.0),
        "algorithm.lam": pick.number("ppo.adv_estimator.gae_lambda", 1.0),
        "algorithm.use_kl_in_reward": in_reward,
        "algorithm.kl_coef": _known(penalty),
        "algorithm.kl_ctrl_type": "fixed",
        "algorithm.norm_adv_by_std_in_grpo": pick.flag("grpo.normalize_rewards", True),
        "algorithm.rollout_is": "token" if pick.flag("loss_fn.use_importance_sampling_correction") else None,
        "algorithm.bypass_mode": False,
        "data.train_files": _files(pick.raw("data.train"), pick.text("data.train.data_path")),
        "data.val_files": _files(pick.raw("data.validation"), pick.text("data.validation.data_path")),
        "data.made": "",
        "data.train_batch_size": _known(pick.whole(f"{own}.num_prompts_per_step")),
        **_rollout(config, own),
        **_role(config, "actor", "policy", own),
        **_role(config, "critic", "value", own),
        **{name.replace("actor", "ref", 1): value for name, value in _role(config, "actor", "policy", own).items()
           if ".sharding." in name or name.endswith("unshards_to_read")},
        "actor.use_kl_loss": bool(penalty) and not in_reward,
        "actor.epochs": pick.whole("ppo.ppo_epochs", 4) if own == "ppo" else 1,
        "actor.loss_agg_mode": "token-mean" if pick.flag("loss_fn.token_level_loss", True) else "seq-mean-token-mean",
        "actor.loss_mode": UNKNOWN if pick.flag("loss_fn.use_cispo") or pick.flag("loss_fn.disable_ppo_ratio") else
        "gspo" if pick.flag("loss_fn.sequence_level_importance_ratios") else "vanilla",
        "ref.model.path": _known(pick.text("policy.model_name")),
        "ref.shares_actor": False,
    }  # fmt: skip


def _known(value: Any) -> Any:
    return UNKNOWN if value is None else value


def _files(section: Any, path: str | None) -> Any:
    """Paths of the data; of several sets, of each."""
    sets = cast("list[Any]", section) if isinstance(section, list) else [{"data_path": path}]
    found = [cast("dict[str, Any]", one).get("data_path") for one in sets if isinstance(one, dict)]
    return tuple(str(one) for one in found if one and str(one).startswith(("/", ".", "~")))


def _rollout(config: Config, own: str) -> dict[str, Any]:
    pick, at = config.pick, "policy.generation"
    engine = pick.text(f"{at}.backend", "")
    vllm = f"{at}.vllm_cfg"
    found: dict[str, Any] = {
        "rollout.n": _known(pick.whole(f"{own}.num_generations_per_prompt")),
        "rollout.mode": "async" if pick.flag(f"{vllm}.async_engine") else "sync",
        "rollout.top_k": pick.whole(f"{at}.top_k") or -1,
        "rollout.val_n": pick.whole(f"{own}.val_num_generations_per_prompt", 1),
        "rollout.multi_turn": pick.whole(f"{own}.max_rollout_turns", 1) > 1,
        "rollout.calculate_log_probs": True,
        "rollout.quantization": None,
        "rollout.engine_kwargs": pick.mapping(f"{at}.vllm_kwargs"),
        "rollout.data_parallel": 1,
    }
    if engine == "vllm":
        found |= {
            "rollout.memory_utilization": _known(pick.number(f"{vllm}.gpu_memory_utilization")),
            "rollout.tensor_parallel": _known(pick.whole(f"{vllm}.tensor_parallel_size")),
            "rollout.pipeline_parallel": _known(pick.whole(f"{vllm}.pipeline_parallel_size")),
            "rollout.expert_parallel": _since(config, f"{vllm}.expert_parallel_size", f"{vllm}.tensor_parallel_size"),
            "rollout.max_model_len": pick.whole(f"{vllm}.max_model_len"),
            "rollout.enforce_eager": _known(pick.raw(f"{vllm}.enforce_eager")),
            "rollout.kv_cache_dtype": _known(pick.text(f"{vllm}.kv_cache_dtype")),
            "rollout.dtype": _precision(pick.text(f"{vllm}.precision")),
        }
    return found


def _since(config: Config, key: str, beside: str) -> Any:
    """A size that a config of an older release has no key for: 1 where the one BESIDE it is given."""
    return _known(config.pick.whole(key) or (config.pick.whole(beside) and 1))


def _precision(name: str | None) -> Any:
    return name if name in ("bfloat16", "float16", "float32") else UNKNOWN


def _role(config: Config, role: str, at: str, own: str) -> dict[str, Any]:
    """A model that is trained: by Megatron, or by DTensor (FSDP2 of its own or of Automodel)."""
    pick, megatron = config.pick, _is_on(config, f"{at}.megatron_cfg")
    side = f"{at}.megatron_cfg" if megatron else f"{at}.dtensor_cfg"
    word = "_model_parallel_size" if megatron else "_parallel_size"
    lora = f"{side}.peft" if megatron else f"{side}.lora_cfg"
    n, batch = pick.whole(f"{own}.num_generations_per_prompt"), pick.whole(f"{at}.train_global_batch_size")
    packed, dynamic = _is_on(config, f"{at}.sequence_packing"), _is_on(config, f"{at}.dynamic_batching")
    together = _together(config) is True
    rate = pick.mapping(f"{at}.megatron_cfg.optimizer") if megatron else pick.mapping(f"{at}.optimizer.kwargs")
    tokens = f"{at}.{'dynamic_batching' if dynamic else 'sequence_packing'}"
    found: dict[str, Any] = {
        "mini_batch_size": batch // n if n and batch and batch % n == 0 else UNKNOWN,
        "dynamic_batch": packed or dynamic,
        "infer_dynamic_batch": packed or dynamic,
        "max_tokens": _known(pick.whole(f"{tokens}.train_mb_tokens")),
        "infer_max_tokens": _known(pick.whole(f"{tokens}.logprob_mb_tokens")),
        "model.gradient_checkpointing": _known(pick.raw(f"{side}.activation_checkpointing")),
        "model.lora_rank": pick.whole(f"{lora}.dim", 0) if _is_on(config, lora) else 0,
        "model.lora_alpha": _known(pick.number(f"{lora}.alpha")),
        "optim.lr": _known(_number(rate.get("lr"))),
        "optim.weight_decay": _known(_number(rate.get("weight_decay"))),
        "optim.name": "adamw" if megatron or "AdamW" in pick.text(f"{at}.optimizer.name", "") else UNKNOWN,
        "optim.grad_clip": pick.number(f"{at}.megatron_cfg.optimizer.clip_grad" if megatron else
                                       f"{at}.max_grad_norm"),
        "sharding.strategy": "megatron" if megatron else "fsdp2" if _is_on(config, side) else UNKNOWN,
        "sharding.tensor_parallel": _known(pick.whole(f"{side}.tensor{word}")),
        "sharding.context_parallel": _since(config, f"{side}.context_parallel_size", f"{side}.tensor{word}"),
        "sharding.pipeline_parallel": pick.whole(f"{side}.pipeline{word}", 1),
        "sharding.expert_parallel": pick.whole(f"{side}.expert{word}", 1),
        "sharding.sequence_parallel": 1,
        # setup.py, dtensor_policy_worker_v2.py (7ea279a): weights in float32, on the host while a colocated engine
        # generates; FSDP's own offload with cpu_offload.
        "sharding.model_dtype": pick.text(f"{at}.precision") or UNKNOWN if megatron else "float32",
        "sharding.offload_policy": pick.flag(f"{side}.cpu_offload"),
        "sharding.param_offload": together,
        "sharding.optimizer_offload": together,
        "sharding.reshard_after_forward": True,
        "unshards_to_read": not megatron,  # unshard_fsdp2_model of dtensor_policy_worker.py
        "sharding.shard_size": -1,
        "sharding.cpu_optimizer_share": UNKNOWN if megatron else 0.0,
        "chunked_logits": False,
        "model.fused_kernels": False,
    }  # fmt: skip
    return {f"{role}.{name}": value for name, value in found.items()} | {f"{role}.own_gpus": 0}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _refused(config: Config, spec: RunSpec) -> Iterator[Refusal]:
    """What `setup` of grpo.py and ppo.py, and `Policy` of lm_policy.py assert or raise."""
    pick, own = config.pick, _algorithm(config)
    yield from _backend(config)
    prompts, n = pick.whole(f"{own}.num_prompts_per_step"), pick.whole(f"{own}.num_generations_per_prompt")
    batch = pick.whole("policy.train_global_batch_size")
    if prompts and n and batch and prompts * n % batch:
        yield Refusal("policy.train_global_batch_size", f"expected a divisor of num_prompts_per_step × "
                      f"num_generations_per_prompt = {prompts * n}, got {batch}")  # fmt: skip
    elif pick.flag("loss_fn.force_on_policy_ratio") and prompts and n and batch and prompts * n != batch:
        yield Refusal("loss_fn.force_on_policy_ratio", f"expected train_global_batch_size = {prompts * n} with it, got "
                      f"{batch}")  # fmt: skip
    if (
        config.kind != "single"
        and not pick.flag(f"{own}.use_dynamic_sampling")
        and pick.number(f"{own}.batch_multiplier", 1.0) != 1
    ):
        yield Refusal(f"{own}.batch_multiplier", f"expected 1 without {own}.use_dynamic_sampling, got "
                      f"{pick.number(f'{own}.batch_multiplier'):g}")  # fmt: skip
    if pick.text("grpo.stop_at_validation_metric") and pick.number("grpo.stop_at_validation_threshold") is None:
        yield Refusal(
            "grpo.stop_at_validation_metric", "expected grpo.stop_at_validation_threshold beside it, got none"
        )
    if pick.flag("grpo.skip_reference_policy_logprobs_calculation") and pick.number(
        "loss_fn.reference_policy_kl_penalty"):  # fmt: skip
        yield Refusal("grpo.skip_reference_policy_logprobs_calculation", "expected "
                      "loss_fn.reference_policy_kl_penalty: 0 with it, got "
                      f"{pick.number('loss_fn.reference_policy_kl_penalty'):g}")  # fmt: skip
    yield from _apart(config)


def _backend(config: Config) -> Iterator[Refusal]:
    pick, spec_of = config.pick, config.pick.whole
    megatron, dtensor = _is_on(config, "policy.megatron_cfg"), _is_on(config, "policy.dtensor_cfg")
    if megatron and dtensor:
        yield Refusal("policy.megatron_cfg.enabled", "expected either this or policy.dtensor_cfg.enabled, got both")
        return
    if pick.raw("policy.dtensor_cfg.enabled") is not None and not megatron and not dtensor:
        yield Refusal("policy.dtensor_cfg.enabled", "expected this or policy.megatron_cfg.enabled, got none")
        return
    if _is_on(config, "policy.sequence_packing") and _is_on(config, "policy.dynamic_batching"):
        yield Refusal("policy.dynamic_batching.enabled", "expected this or policy.sequence_packing.enabled, got both")
    side = "policy.megatron_cfg" if megatron else "policy.dtensor_cfg"
    word = "tensor_model_parallel_size" if megatron else "tensor_parallel_size"
    tensor, context = spec_of(f"{side}.{word}", 1), spec_of(f"{side}.context_parallel_size", 1)
    pipeline = spec_of(f"{side}.pipeline_model_parallel_size", 1)
    nodes, each, _, _ = _gpus(config)
    if nodes is not UNKNOWN and nodes * each % max(1, tensor * context * pipeline):
        yield Refusal(f"{side}.{word}", f"expected a product of tensor, context and pipeline sizes that divides the "
                      f"{nodes * each} GPUs, got {tensor} × {context} × {pipeline}")  # fmt: skip


def _apart(config: Config) -> Iterator[Refusal]:
    """Generation on GPUs of its own, and asynchronous runs."""
    pick, at = config.pick, "policy.generation.colocated"
    nodes, each = pick.whole("cluster.num_nodes"), pick.whole("cluster.gpus_per_node")
    together = pick.raw(f"{at}.enabled") is None or pick.flag(f"{at}.enabled")
    own = pick.whole(f"{at}.resources.gpus_per_node")
    if not together and nodes == 1 and each is not None and not (own and own < each):
        yield Refusal(f"{at}.resources.gpus_per_node", f"expected 1 to {each - 1} of the {each} GPUs, got {own}")
    if not together and nodes is not None and nodes > 1:
        own_nodes = pick.whole(f"{at}.resources.num_nodes")
        if not own_nodes or own_nodes >= nodes:
            yield Refusal(f"{at}.resources.num_nodes", f"expected 1 to {nodes - 1} of the {nodes} nodes, got "
                          f"{own_nodes}")  # fmt: skip
        elif own != each:
            yield Refusal(f"{at}.resources.gpus_per_node", f"expected cluster.gpus_per_node = {each}, got {own}")
    if config.kind != "grpo" or not _is_on(config, "grpo.async_grpo"):
        return
    engine = pick.text("policy.generation.backend", "")
    if not pick.flag("loss_fn.use_importance_sampling_correction"):
        yield Refusal("loss_fn.use_importance_sampling_correction", "expected true with grpo.async_grpo, got false")
    if engine == "vllm" and not pick.flag("policy.generation.vllm_cfg.async_engine"):
        yield Refusal("policy.generation.vllm_cfg.async_engine", "expected true with grpo.async_grpo, got false")
    if engine == "vllm" and together and pick.raw(f"{at}.enabled") is not None:
        yield Refusal(f"{at}.enabled", "expected false with grpo.async_grpo, got true")


TRAINER = Trainer(
    name="nemo-rl",
    title="NeMo-RL",
    command=re.compile(r"(?:.*/)?run_(?:vlm_)?(?P<kind>grpo|ppo)(?:_nemo_gym|_sliding_puzzle)?\.py"),
    signs=("run_grpo", "run_vlm_grpo", "run_ppo"),
    kind="grpo",
    fields=_FIELDS,
    named=_NAMED,
    derive=_derive,
    lacks=_LACKS,
    refused=_refused,
    style="overrides",
    documents=True,
    config_option="--config",
    inherits="defaults",
    sections={
        **dict.fromkeys(("sft", "dpo", "rm", "eval", "distillation"), ""),
        "ppo": "ppo", "async_rl": "single", "grpo": "grpo",
    },
    # `MasterConfig` and what is below it let other keys pass.
    guessed=frozenset(("grpo", "ppo", "single")),
    choices={
        "policy.generation.backend": ("vllm", "sglang", "megatron", "trtllm", "dynamo"),
        "loss_fn.reference_policy_kl_type": ("k1", "k2", "k3"),
        "loss_fn.truncated_importance_sampling_type": ("tis", "icepop", "seq-mask-tis"),
        "policy.precision": ("float32", "bfloat16", "float16"),
    },
)  # fmt: skip
