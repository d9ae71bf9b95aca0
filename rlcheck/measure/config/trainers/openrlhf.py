"""OpenRLHF: the options of `openrlhf.cli.train_ppo_ray`, dotted since 0.10.2 (OpenRLHF/OpenRLHF@3c3be62).

Until 0.6.1 there was `openrlhf.cli.train_ppo`, too: one job of DeepSpeed, whose models are all on every GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.launchers import world
from rlcheck.measure.config.openrlhf_moved import moved
from rlcheck.measure.config.trainer import UNKNOWN, Refusal, Trainer

_FIELDS = {
    "nodes": "actor.num_nodes",
    "gpus_per_node": "actor.num_gpus_per_node",
    "run_dir": "ckpt.output_dir",
    "project": "logger.wandb.project",
    "experiment": "logger.wandb.run_name",
    "save_freq": "ckpt.save_steps",
    "test_freq": "eval.steps",
    "total_epochs": "train.num_episodes",
    "actor.model.path": "actor.model_name_or_path",
    "actor.model.gradient_checkpointing": "actor.gradient_checkpointing_enable",
    "actor.model.remove_padding": "ds.packing_samples",
    "actor.model.liger": "ds.use_liger_kernel",
    "actor.model.lora_rank": "ds.lora.rank",
    "actor.model.lora_alpha": "ds.lora.alpha",
    "actor.model.target_modules": "ds.lora.target_modules",
    "actor.optim.lr": "actor.adam.lr",
    "actor.optim.weight_decay": "actor.adam.weight_decay",
    "actor.optim.lr_warmup_steps_ratio": "actor.lr_warmup_ratio",
    "actor.optim.lr_scheduler_type": "actor.lr_scheduler",
    "actor.micro_batch_size": "train.micro_batch_size",
    "actor.infer_micro_batch_size": "rollout.micro_batch_size",
    "actor.max_tokens": "train.max_tokens_per_gpu",
    "actor.epochs": "train.max_epochs",
    "actor.clip_ratio": "actor.eps_clip",
    "actor.clip_ratio_c": "actor.dual_clip",
    "actor.use_kl_loss": "algo.kl.use_loss",
    "actor.kl_loss_coef": "algo.kl.init_coef",
    "critic.model.path": "critic.model_name_or_path",
    "critic.optim.lr": "critic.adam.lr",
    "critic.optim.weight_decay": "critic.adam.weight_decay",
    "critic.optim.lr_warmup_steps_ratio": "critic.lr_warmup_ratio",
    "critic.optim.lr_scheduler_type": "critic.lr_scheduler",
    "critic.cliprange_value": "critic.value_clip",
    "reward_model.model.path": "reward.model_name_or_path",
    "rollout.n": "rollout.n_samples_per_prompt",
    "rollout.temperature": "rollout.temperature",
    "rollout.top_p": "rollout.top_p",
    "rollout.memory_utilization": "vllm.gpu_memory_utilization",
    "rollout.enforce_eager": "vllm.enforce_eager",
    "rollout.sleeps": "vllm.enable_sleep",
    "rollout.tensor_parallel": "vllm.tensor_parallel_size",
    "rollout.prefix_caching": "vllm.enable_prefix_caching",
    "rollout.max_model_len": "data.max_len",
    "rollout.val_temperature": "eval.temperature",
    "rollout.val_n": "eval.n_samples_per_prompt",
    "data.prompt_key": "data.input_key",
    "data.train_batch_size": "rollout.batch_size",
    "data.train_max_samples": "data.max_samples",
    "algorithm.gamma": "algo.advantage.gamma",
    "algorithm.lam": "algo.advantage.lambd",
    "algorithm.kl_coef": "algo.kl.init_coef",
}
_NAMED = {
    "colocated": "train.colocate_all",
    "rollout_gpus_per_node": "vllm.num_engines",
    "actor.mini_batch_size": "train.batch_size",
    "critic.mini_batch_size": "train.batch_size",
    "actor.clip_ratio_low": "actor.eps_clip_low_high",
    "actor.clip_ratio_high": "actor.eps_clip_low_high",
    "actor.entropy_coeff": "actor.entropy_coef",
    "actor.dynamic_batch": "train.dynamic_batch_enable",
    "actor.optim.grad_clip": "actor.max_norm",
    "actor.optim.name": "actor.optim",
    "actor.sharding.dtype": "ds.param_dtype",
    "actor.sharding.cpu_optimizer_share": "ds.adam_offload",
    "actor.sharding.zero_stage": "ds.zero_stage",
    "actor.sharding.optimizer_offload": "ds.enable_sleep",
    "actor.sharding.context_parallel": "ds.ring_attn_size",
    "actor.sharding.tensor_parallel": "ds.tensor_parallel_size",
    "actor.loss_mode": "actor.policy_loss_type",
    "algorithm.adv_estimator": "algo.advantage.estimator",
    "algorithm.use_kl_in_reward": "algo.kl.use_loss",
    "algorithm.rollout_is": "algo.advantage.is_correction_enable",
    "algorithm.kl_ctrl_type": "algo.kl.target",
    "data.train_files": "data.prompt_dataset",
    "data.val_files": "eval.dataset",
    "data.max_response_length": "rollout.max_new_tokens",
    "reward.function_path": "reward.remote_url",
    "critic_warmup": "critic.freezing_steps",
}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# openrlhf/trainer/ppo_utils/experience_maker.py: what each estimator computes, under the names of verl's registry.
_ESTIMATORS = {
    "gae": "gae", "reinforce": "reinforce_plus_plus", "rloo": "rloo", "group_norm": "grpo", "dr_grpo": "grpo",
    "reinforce_baseline": "reinforce_plus_plus_baseline",
}  # fmt: skip
_GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
_LACKS = frozenset((
    "actor.model.trust_remote_code", "critic.model.trust_remote_code", "reward_model.model.trust_remote_code",
    "actor.model.tokenizer_path", "actor.model.custom_chat_template",
))  # fmt: skip


def _gpus(config: Config, role: str) -> int:
    return config.pick.whole(f"{role}.num_nodes", 1) * config.pick.whole(f"{role}.num_gpus_per_node", 8)


def _derive(config: Config) -> dict[str, Any]:
    pick, shared = config.pick, config.kind == "shared"
    together = shared or (pick.flag("train.colocate_all") and not pick.flag("train.async_enable"))
    engines, tensor = pick.whole("vllm.num_engines") or 0, pick.whole("vllm.tensor_parallel_size", 1)
    estimator = pick.text("algo.advantage.estimator", "gae")
    in_loss, coef = pick.flag("algo.kl.use_loss"), pick.number("algo.kl.init_coef", 0.0)
    url = pick.text("reward.remote_url") or ("agent" if pick.text("train.agent_func_path") else None)
    one_node = pick.whole("actor.num_nodes", 1) == 1
    return {
        **(_launched(config) if shared else {}),
        "device": "cuda",
        "expandable_segments": False,
        "colocated": together or not (engines or _must_have_engines(config)),
        "rollout_nodes": 0,
        "ray_address": "",
        "rollout_gpus_per_node": 0 if together else engines * tensor if one_node else UNKNOWN,
        "ref": shared or coef > 0,
        "critic": estimator == "gae",
        "reward_model": url is None,
        "total_steps": None,
        "loggers": tuple(name for name, key in (("wandb", "logger.wandb.key"),
                                                ("tensorboard", "logger.tensorboard_dir")) if pick.raw(key)),
        "critic_warmup": max(0, pick.whole("critic.freezing_steps", -1)),
        "algorithm.adv_estimator": _ESTIMATORS.get(estimator, UNKNOWN),
        "algorithm.norm_adv_by_std_in_grpo": estimator != "dr_grpo" and not pick.flag("algo.advantage.no_std_norm"),
        "algorithm.use_kl_in_reward": coef > 0 and not in_loss,
        "algorithm.kl_ctrl_type": "adaptive" if pick.number("algo.kl.target") is not None else "fixed",
        "algorithm.rollout_is": "token" if pick.flag("algo.advantage.is_correction_enable") else None,
        "algorithm.bypass_mode": False,
        "reward.function_path": url if url is not None and url.endswith(".py") else None,
        "reward.function_name": "reward_func",
        "reward.endpoints": tuple(url.split(",")) if url is not None and url.startswith("http") else (),
        **_data(config),
        **_rollout(config, engines),
        **_roles(config, together),
    }  # fmt: skip


def _launched(config: Config) -> dict[str, Any]:
    nodes, each = world(config)
    return {"nodes": UNKNOWN if nodes is None and each is None else nodes or 1, "gpus_per_node": each or UNKNOWN}


def _must_have_engines(config: Config) -> bool:
    """Whether this release generates by vLLM alone: before, an actor without engines did so itself."""
    return config.kind != "shared" and _number(config.version) >= (0, 9)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _data(config: Config) -> dict[str, Any]:
    """`rollout.max_new_tokens` or what the prompt leaves of `data.max_len`; how long prompts are is not limited."""
    pick = config.pick
    files, val = pick.text("data.prompt_dataset"), pick.text("eval.dataset")
    found: dict[str, Any] = {
        "data.train_files": _local(files),
        "data.val_files": _local(val),
        "data.source_key": "datasource",
        "data.made": "",
        "data.max_response_length": pick.whole("rollout.max_new_tokens") or UNKNOWN,
    }
    if pick.whole("prompt_max_len") is not None:  # before 0.9.8
        found["data.max_prompt_length"] = pick.whole("prompt_max_len")
    return found


def _local(names: str | None) -> Any:
    """Paths; what may be names on the hub is left out."""
    parts = (names or "").split(",")
    return tuple(part for part in parts if part.startswith(("/", ".", "~"))) if names else ()


def _rollout(config: Config, engines: int) -> dict[str, Any]:
    itself = not engines and not _must_have_engines(config)
    found: dict[str, Any] = {}
    if itself:  # in the batches in which samples are read
        rows = config.pick.whole("rollout.micro_batch_size", 8)
        found = {"rollout.max_seqs": rows, "rollout.memory_utilization": UNKNOWN, "rollout.tensor_parallel": 1}
    elif config.pick.raw("vllm.gpu_memory_utilization") is None:
        found = {"rollout.memory_utilization": 0.9}  # vLLM's own default
    return {
        **found,
        "rollout.in_process": itself,
        "rollout.name": "vllm" if engines else "hf" if itself else UNKNOWN,
        "rollout.mode": "async" if config.pick.flag("train.async_enable") else "sync",
        "rollout.dtype": "bfloat16",  # openrlhf/trainer/ray/vllm_engine.py
        "rollout.data_parallel": 1,
        "rollout.pipeline_parallel": 1,
        "rollout.expert_parallel": 1,
        "rollout.top_k": -1,
        "rollout.quantization": None,
        "rollout.kv_cache_dtype": "auto",
        "rollout.multi_turn": config.pick.text("train.agent_func_path") is not None,
        "rollout.calculate_log_probs": config.pick.flag("algo.advantage.is_correction_enable"),
        "rollout.engine_kwargs": {},
    }


def _sharding(config: Config) -> dict[str, Any]:
    """How DeepSpeed places a model that learns."""
    pick = config.pick
    half = _DTYPES.get(pick.text("ds.param_dtype", "bf16"), UNKNOWN)
    summed, old = pick.text("ds.grad_accum_dtype"), _number(config.version) < (0, 5, 4)
    return {
        "strategy": "deepspeed",
        "dtype": half,
        "model_dtype": half,
        # openrlhf/utils/deepspeed_utils.py told DeepSpeed to add up in float32 until 0.5.3.
        "reduce_dtype": _DTYPES.get(summed, UNKNOWN) if summed else "float32" if old else half,
        "zero_stage": pick.whole("ds.zero_stage", 2),
        "cpu_optimizer_share": 1.0 if pick.flag("ds.adam_offload") else 0.0,
        # offload_deepspeed_states (openrlhf/utils/deepspeed/deepspeed_utils.py): all but the 16-bit weights.
        "optimizer_offload": pick.flag("ds.enable_sleep") and not pick.flag("ds.adam_offload"),
        "param_offload": False,
        "offload_policy": False,
        "context_parallel": pick.whole("ds.ring_attn_size", 1),
        "tensor_parallel": pick.whole("ds.tensor_parallel_size", 1),
        "sequence_parallel": 1,
        "pipeline_parallel": 1,
        "expert_parallel": 1,
    }


def _roles(config: Config, together: bool) -> dict[str, Any]:
    pick = config.pick
    n, train = pick.whole("rollout.n_samples_per_prompt", 1), pick.whole("train.batch_size", 128)
    mini = train // n if n > 0 and train % n == 0 else UNKNOWN
    low, high = _range(pick.raw("actor.eps_clip_low_high"))
    sharding, dynamic = _sharding(config), pick.flag("train.dynamic_batch_enable")
    scored = pick.flag("train.colocate_critic_reward")
    found: dict[str, Any] = {
        "actor.mini_batch_size": mini,
        "critic.mini_batch_size": mini,
        "critic.micro_batch_size": pick.whole("train.micro_batch_size", 1),
        "actor.dynamic_batch": dynamic,
        "actor.infer_dynamic_batch": dynamic,
        "actor.infer_max_tokens": pick.whole("rollout.max_tokens_per_gpu") or pick.whole(
            "train.max_tokens_per_gpu", 16192),
        "ref.infer_dynamic_batch": dynamic,
        "ref.infer_micro_batch_size": pick.whole("rollout.micro_batch_size", 1),
        "critic.dynamic_batch": dynamic,
        "critic.model.lora_rank": pick.whole("ds.lora.rank", 0),
        "actor.clip_ratio_low": low,
        "actor.clip_ratio_high": high,
        "actor.entropy_coeff": pick.number("actor.entropy_coef") or 0.0,
        "actor.loss_mode": {"ppo": "vanilla", "gspo": "gspo"}.get(pick.text("actor.policy_loss_type", "ppo"), UNKNOWN),
        "ref.shares_actor": False,
        "ref.own_gpus": 0 if together or pick.flag("train.colocate_actor_ref") else _gpus(config, "ref"),
        "critic.own_gpus": 0 if together else _gpus(config, "critic"),
        "reward_model.own_gpus": 0 if together or scored else _gpus(config, "reward"),
        "reward_model.beside": "critic" if not together and scored else "",
    }  # fmt: skip
    for name, value in _distribution(config).items():
        found |= {f"actor.{name}": value, f"ref.{name}": value}
    for role in ("actor", "ref", "critic", "reward_model"):
        found |= {f"{role}.sharding.{name}": value for name, value in sharding.items()}
        found |= {f"{role}.chunked_logits": False, f"{role}.model.fused_kernels": False}
    third = sharding["zero_stage"] == 3
    for role in ("ref", "reward_model"):  # get_ds_eval_config: stage 3 as the actor, else each GPU has all of it
        found |= {f"{role}.sharding.zero_stage": 3 if third else 0, f"{role}.sharding.optimizer_offload": False}
    if pick.flag("ref.offload"):
        found["ref.sharding.param_offload"] = third or UNKNOWN
    for role in ("actor", "critic"):
        found[f"{role}.optim.name"] = pick.text(f"{role}.optim", "adam").replace("adam", "adamw")
        # DeepSpeed clips nothing at 0.
        found[f"{role}.optim.grad_clip"] = pick.number(f"{role}.max_norm", 1.0) or None
    return found


def _distribution(config: Config) -> dict[str, float]:
    """Bytes that a logit's distribution takes besides its 16 bits (openrlhf/models/utils.py, and the actor's casts).

    Since 0.6.1 the actor casts logits to float32, which flash-attn's kernel reads; its gradient is of their size, and
    goes back into 16 bits. Before 0.7 rows were read one by one; before 0.6.1 a log-softmax was made of all.
    """
    version = _number(config.version)
    read, made = (4.0, 8.0) if version >= (0, 7) else (4.0, 12.0) if version >= (0, 6, 1) else (6.0, 12.0)
    # An entropy's probabilities, their product with the logits, and what goes back through both.
    return {"read_bytes": read, "loss_bytes": made + (8.0 if config.pick.number("actor.entropy_coef") else 0.0)}


def _range(pair: Any) -> tuple[Any, Any]:
    values = cast("list[Any]", pair) if isinstance(pair, list | tuple) else []
    return (values[0], values[1]) if len(values) == 2 else (None, None)


def _refused(config: Config, spec: RunSpec) -> Iterator[Refusal]:
    """The assertions of `train_ppo_ray.py`, and DeepSpeed's of its batch."""
    pick = config.pick
    actors, engines = _gpus(config, "actor"), pick.whole("vllm.num_engines") or 0
    together, is_async = pick.flag("train.colocate_all"), pick.flag("train.async_enable")
    tensor, n = pick.whole("vllm.tensor_parallel_size", 1), pick.whole("rollout.n_samples_per_prompt", 1)
    if pick.raw("actor.model_name_or_path") is None:
        yield Refusal("actor.model_name_or_path", "expected a model, got none")
    if together and not is_async and engines and actors != engines * tensor:
        yield Refusal("vllm.num_engines", f"expected engines × tensor_parallel_size = {actors}, the actor's GPUs, with "
                      f"train.colocate_all, got {engines} × {tensor}")  # fmt: skip
    if (together or pick.flag("train.colocate_actor_ref")) and spec.ref is not None and _gpus(config, "ref") != actors:
        yield Refusal("ref.num_gpus_per_node", f"expected the actor's {actors} GPUs where the two share them, got "
                      f"{_gpus(config, 'ref')}")  # fmt: skip
    group = max(1, pick.whole("ds.ring_attn_size", 1) * pick.whole("ds.tensor_parallel_size", 1))
    ranks, micro = max(1, actors // group), max(1, pick.whole("train.micro_batch_size", 1))
    train = pick.whole("train.batch_size", 128)
    if not pick.flag("train.dynamic_batch_enable") and train % (micro * ranks):
        words = (
            f"expected a multiple of micro_batch_size × ranks = {micro * ranks}, which DeepSpeed asserts, got {train}"
        )
        yield Refusal("train.batch_size", words)
    prompts, infer = pick.whole("rollout.batch_size", 1024), max(1, pick.whole("rollout.micro_batch_size", 1))
    if n * prompts // infer < ranks:
        yield Refusal("rollout.batch_size", f"expected a micro batch for each of {ranks} ranks, got "
                      f"{n * prompts} samples in batches of {infer}")  # fmt: skip
    if pick.flag("ds.packing_samples") and not engines:
        yield Refusal("ds.packing_samples", "expected vllm.num_engines above 0 with packed samples, got none")
    if is_async and pick.flag("vllm.enable_sleep") and together:
        yield Refusal("vllm.enable_sleep", "expected no sleep with train.async_enable, got both")
    if pick.flag("train.partial_rollout_enable") and not is_async:
        yield Refusal("train.partial_rollout_enable", "expected train.async_enable beside it, got none")
    scored = pick.text("reward.remote_url") or pick.text("train.agent_func_path")
    if pick.flag("algo.dynamic_filtering_enable") and n <= 1:
        yield Refusal("rollout.n_samples_per_prompt", f"expected more than 1 with dynamic filtering, got {n}")
    if pick.flag("algo.dynamic_filtering_enable") and not scored:
        yield Refusal("algo.dynamic_filtering_enable", "expected reward.remote_url or an agent beside it, got none")
    if not scored and not pick.text("reward.model_name_or_path"):
        yield Refusal("reward.model_name_or_path", "expected a reward model, reward.remote_url or an agent, got none")


_OWN = re.compile(r"--(?:pretrain|actor[._]|micro_train_batch_size|zero_stage)")


def _owns(words: Sequence[str]) -> bool:
    """Whether a program of this name is OpenRLHF's, by its options."""
    return "openrlhf." in words[0] or any(map(_OWN.match, words)) or any("$" in word for word in words[1:])


def _turned(kind: str, words: Sequence[str]) -> str:
    return "shared" if re.search(r"train_ppo(?:\.py)?$", words[0]) else kind


TRAINER = Trainer(
    name="openrlhf",
    title="OpenRLHF",
    command=re.compile(r"openrlhf\.cli\.train_ppo(?:_ray)?|(?:.*/)?train_ppo(?:_ray)?\.py"),
    signs=("train_ppo",),
    kind="ppo",
    owns=_owns,
    turned=_turned,
    fields=_FIELDS,
    named=_NAMED,
    derive=_derive,
    lacks=_LACKS,
    refused=_refused,
    asserts=frozenset(("CFG024",)),
    moved=moved(),
)
