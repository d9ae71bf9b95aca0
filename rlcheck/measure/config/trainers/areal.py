"""AReaL: a YAML over dataclasses, with Hydra's overrides; a program of its own (inclusionAI/AReaL@4aef98d)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.trainer import UNKNOWN, Refusal, Trainer

_FIELDS = {
    "run_dir": "saver.fileroot",
    "project": "stats_logger.wandb.project",
    "experiment": "experiment_name",
    "total_epochs": "total_train_epochs",
    "total_steps": "total_train_steps",
    "actor.model.path": "actor.path",
    "actor.model.tokenizer_path": "tokenizer_path",
    "actor.model.gradient_checkpointing": "actor.gradient_checkpointing",
    "actor.model.lora_alpha": "actor.lora_alpha",
    "actor.optim.lr": "actor.optimizer.lr",
    "actor.optim.weight_decay": "actor.optimizer.weight_decay",
    "actor.optim.grad_clip": "actor.optimizer.gradient_clipping",
    "actor.optim.lr_scheduler_type": "actor.optimizer.lr_scheduler_type",
    "actor.optim.lr_warmup_steps_ratio": "actor.optimizer.warmup_steps_proportion",
    "actor.max_tokens": "actor.mb_spec.max_tokens_per_mb",
    "actor.infer_max_tokens": "actor.mb_spec.max_tokens_per_mb",
    "actor.clip_ratio": "actor.eps_clip",
    "actor.clip_ratio_low": "actor.eps_clip",
    "actor.clip_ratio_c": "actor.c_clip",
    "actor.sharding.dtype": "actor.dtype",
    "actor.sharding.model_dtype": "actor.dtype",
    "actor.sharding.reduce_dtype": "actor.grad_reduce_dtype",
    "actor.sharding.offload_policy": "actor.fsdp.offload_params",
    "critic.model.path": "critic.path",
    "critic.model.gradient_checkpointing": "critic.gradient_checkpointing",
    "critic.optim.lr": "critic.optimizer.lr",
    "critic.max_tokens": "critic.mb_spec.max_tokens_per_mb",
    "critic.cliprange_value": "critic.eps_clip",
    "critic.sharding.dtype": "critic.dtype",
    "ref.model.path": "ref.path",
    "ref.infer_max_tokens": "ref.mb_spec.max_tokens_per_mb",
    "ref.sharding.dtype": "ref.dtype",
    "rollout.n": "gconfig.n_samples",
    "rollout.temperature": "gconfig.temperature",
    "rollout.top_p": "gconfig.top_p",
    "data.max_response_length": "gconfig.max_new_tokens",
    "data.max_prompt_length": "train_dataset.max_length",
    "data.train_batch_size": "train_dataset.batch_size",
    "algorithm.gamma": "actor.discount",
    "algorithm.lam": "actor.gae_lambda",
    "algorithm.kl_coef": "actor.kl_ctl",
}
_NAMED = {
    "nodes": "cluster.n_nodes",
    "gpus_per_node": "actor.backend",
    "rollout_gpus_per_node": "rollout.backend",
    "colocated": "rollout.scheduling_strategy.type",
    "save_freq": "saver.freq_steps",
    "test_freq": "evaluator.freq_steps",
    "loggers": "stats_logger.wandb.mode",
    "actor.mini_batch_size": "actor.ppo_n_minibatches",
    "actor.dynamic_batch": "actor.mb_spec.max_tokens_per_mb",
    "actor.clip_ratio_high": "actor.eps_clip_higher",
    "actor.loss_mode": "actor.importance_sampling_level",
    "actor.model.lora_rank": "actor.lora_rank",
    "actor.model.target_modules": "actor.target_modules",
    "actor.optim.name": "actor.optimizer.type",
    "actor.sharding.strategy": "actor.backend",
    "actor.sharding.tensor_parallel": "actor.backend",
    "actor.sharding.context_parallel": "actor.backend",
    "actor.sharding.pipeline_parallel": "actor.backend",
    "actor.sharding.expert_parallel": "actor.backend",
    "critic": "critic.path",
    "ref": "actor.kl_ctl",
    "rollout.name": "rollout.backend",
    "rollout.tensor_parallel": "rollout.backend",
    "rollout.pipeline_parallel": "rollout.backend",
    "rollout.top_k": "gconfig.top_k",
    "rollout.memory_utilization": "sglang.mem_fraction_static",
    "rollout.max_model_len": "sglang.context_length",
    "rollout.max_seqs": "sglang.max_running_requests",
    "rollout.val_n": "eval_gconfig.n_samples",
    "data.train_files": "train_dataset.path",
    "data.val_files": "valid_dataset.path",
    "algorithm.adv_estimator": "actor.reward_norm.mean_level",
    "algorithm.norm_adv_by_std_in_grpo": "actor.reward_norm.std_level",
    "algorithm.use_kl_in_reward": "actor.kl_ctl",
    "algorithm.rollout_is": "actor.use_decoupled_loss",
}
_LACKS = frozenset(("actor.micro_batch_size", "actor.infer_micro_batch_size"))
_TRAINS, _SERVES = ("fsdp", "megatron", "archon"), ("sglang", "vllm")
_DIMENSIONS = r"(?:[pdtce][1-9]\d*)+"
_KEY = re.compile(r"\+{0,2}(?:scheduler|actor|rollout|gconfig|cluster|train_dataset|sglang|vllm|stats_logger)\.")
_HYBRID = re.compile(rf"\(?attn:({_DIMENSIONS})\|ffn:({_DIMENSIONS})\)?")


class _Backend(NamedTuple):
    """A backend and its sizes by letter, as `areal/api/alloc_mode.py` reads `megatron:d4t2`."""

    name: str
    sizes: dict[str, int]

    @property
    def gpus(self) -> int:
        return math.prod(self.sizes.get(letter, 1) for letter in "pdtc")


def _backend(config: Config, role: str) -> _Backend | None:
    """The backend of ROLE; None where it is not given or cannot be read."""
    text = re.sub(r"\s", "", config.pick.text(f"{role}.backend", ""))
    matched = re.fullmatch(r"(sglang|vllm|fsdp|megatron|archon)(?:\[[A-Za-z_]\w*\])?:(.+)", text)
    if matched is None:
        return None
    hybrid = _HYBRID.fullmatch(matched[2])
    if hybrid is None and not re.fullmatch(_DIMENSIONS, matched[2]):
        return None
    sizes = {letter: int(size) for letter, size in re.findall(r"([a-z])(\d+)", hybrid[1] if hybrid else matched[2])}
    if hybrid is not None:
        sizes |= {letter: int(size) for letter, size in re.findall(r"(e)(\d+)", hybrid[2])}
    return _Backend(matched[1], sizes)


def _has(config: Config, role: str) -> bool:
    """Whether an optional section is there."""
    return any(key == role or key.startswith(f"{role}.") for key in config.given) and not (
        role in config.given and config.pick.raw(role) is None)  # fmt: skip


def _with(config: Config, role: str, target: str) -> bool:
    """Whether ROLE is on the GPUs of TARGET."""
    at = f"{role}.scheduling_strategy"
    return config.pick.text(f"{at}.type") == "colocation" and config.pick.text(f"{at}.target") == target


def _together(config: Config) -> bool:
    return _with(config, "rollout", "actor") or _with(config, "actor", "rollout")


def _gpus(config: Config) -> tuple[Any, Any, Any, Any]:
    """Nodes and GPUs of each that train, then those that generate alone."""
    actor, rollout, each = _backend(config, "actor"), _backend(config, "rollout"), config.pick.whole(
        "cluster.n_gpus_per_node", 8)  # fmt: skip
    if actor is None or rollout is None:
        return UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN
    trains, serves = actor.gpus, 0 if _together(config) else rollout.gpus
    if trains + serves <= each:
        return 1, trains, 0, serves
    if each > 0 and trains % each == 0 and serves % each == 0:
        return trains // each, each, serves // each, each if serves else 0
    return UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN


def _derive(config: Config) -> dict[str, Any]:
    pick = config.pick
    nodes, each, apart_nodes, apart = _gpus(config)
    kl, critic = pick.number("actor.kl_ctl", 0.1) > 0, _has(config, "critic")
    decoupled = pick.flag("actor.use_decoupled_loss")
    level = pick.text("actor.importance_sampling_level", "token")
    return {
        "nodes": nodes, "gpus_per_node": each, "rollout_nodes": apart_nodes, "rollout_gpus_per_node": apart,
        "device": "cuda",
        "ray_address": "",
        "colocated": _together(config),
        "ref": kl and _has(config, "ref"),
        "critic": critic,
        "reward_model": False,
        "loggers": tuple(name for name in ("wandb", "swanlab", "trackio") if pick.text(
            f"stats_logger.{name}.mode", "disabled") != "disabled"),
        "save_freq": pick.whole("saver.freq_steps") or UNKNOWN,
        "test_freq": pick.whole("evaluator.freq_steps") or UNKNOWN,
        "val_before_train": pick.flag("evaluator.eval_before_train"),
        "critic_warmup": 0,
        "algorithm.adv_estimator": "gae" if critic else _estimator(config),
        "algorithm.norm_adv_by_std_in_grpo": pick.text("actor.reward_norm.std_level") is not None,
        "algorithm.use_kl_in_reward": kl and _has(config, "ref"),
        "algorithm.kl_ctrl_type": "fixed",
        "algorithm.rollout_is": level if decoupled else None,
        "algorithm.bypass_mode": not decoupled and not pick.flag("actor.recompute_logprob"),
        "data.train_files": _local(pick.text("train_dataset.path", "")),
        "data.val_files": _local(pick.text("valid_dataset.path", "")) if _has(config, "valid_dataset") else (),
        "data.made": "",
        "data.filter_overlong_prompts": pick.whole("train_dataset.max_length") is not None,
        **_rollout(config),
        **_actor(config),
        **{f"{role}.{name}": value for role in ("actor", "ref", "critic") for name, value in _role(
            config, role).items()},
    }  # fmt: skip


def _local(name: str) -> tuple[str, ...]:
    return (name,) if name.startswith(("/", ".", "~")) else ()


def _estimator(config: Config) -> Any:
    """Without a critic: returns, normalized in their group (GRPO), or against the others of it (RLOO)."""
    pick, at = config.pick, "actor.reward_norm"
    if not _has(config, at) or pick.text(f"{at}.mean_level", "batch") != "group":
        return UNKNOWN
    return "rloo" if pick.flag(f"{at}.mean_leave1out") else "grpo"


def _rollout(config: Config) -> dict[str, Any]:
    pick, backend = config.pick, _backend(config, "rollout")
    top_k, evaluated = pick.whole("gconfig.top_k"), _has(config, "eval_gconfig")
    found: dict[str, Any] = {
        "rollout.mode": "async",
        "rollout.top_k": -1 if top_k is None or top_k >= 10**8 else top_k,
        "rollout.val_n": pick.whole("eval_gconfig.n_samples" if evaluated else "gconfig.n_samples", 1),
        "rollout.val_temperature": pick.number("eval_gconfig.temperature" if evaluated else "gconfig.temperature", 1.0),
        "rollout.multi_turn": UNKNOWN,  # its program's workflow
        "rollout.calculate_log_probs": True,
        "rollout.quantization": None,
        "rollout.sleeps": _together(config),
        "rollout.data_parallel": 1,
        "rollout.expert_parallel": 1,
        "rollout.engine_kwargs": {},
    }
    if backend is None:
        return found
    found |= {"rollout.name": backend.name, "rollout.tensor_parallel": backend.sizes.get("t", 1),
              "rollout.pipeline_parallel": backend.sizes.get("p", 1)}  # fmt: skip
    if backend.name == "vllm":
        return found | {
            "rollout.memory_utilization": pick.number("vllm.gpu_memory_utilization", 0.9),
            "rollout.max_model_len": pick.whole("vllm.max_model_len"),
            "rollout.max_seqs": pick.whole("vllm.max_num_seqs", 256),
            "rollout.enforce_eager": pick.flag("vllm.enforce_eager"),
            "rollout.dtype": pick.dtype("vllm.dtype", "bfloat16"),
            "rollout.prefix_caching": not pick.flag("vllm.no_enable_prefix_caching", True),
        }
    return found | {
        "rollout.memory_utilization": pick.number("sglang.mem_fraction_static") or UNKNOWN,
        "rollout.max_model_len": pick.whole("sglang.context_length"),
        "rollout.max_seqs": pick.whole("sglang.max_running_requests") or UNKNOWN,
        "rollout.enforce_eager": pick.flag("sglang.disable_cuda_graph"),
        "rollout.dtype": pick.dtype("sglang.dtype", "bfloat16"),
        "rollout.kv_cache_dtype": pick.text("sglang.kv_cache_dtype", "auto"),
        "rollout.prefix_caching": not pick.flag("sglang.disable_radix_cache", True),
    }


def _actor(config: Config) -> dict[str, Any]:
    pick = config.pick
    clip, higher = pick.number("actor.eps_clip", 0.2), pick.number("actor.eps_clip_higher")
    sequence = pick.text("actor.importance_sampling_level") == "sequence"
    other = pick.flag("actor.use_sapo_loss") or pick.number("actor.m2_threshold") is not None
    modules, lora = pick.words("actor.target_modules"), pick.flag("actor.use_lora")
    return {
        "actor.epochs": 1,
        "actor.use_kl_loss": False,
        "actor.entropy_coeff": 0.0,
        "actor.clip_ratio_high": clip if higher is None else higher,
        "actor.loss_mode": UNKNOWN if other else "gspo" if sequence else "vanilla",
        "actor.loss_agg_mode": "token-mean",
        "actor.model.lora_rank": pick.whole("actor.lora_rank", 32) if lora else 0,
        "actor.model.target_modules": modules or UNKNOWN,
        "ref.shares_actor": False,
    }


def _role(config: Config, role: str) -> dict[str, Any]:
    """What actor, reference and critic have alike."""
    pick, backend = config.pick, _backend(config, role)
    batch, parts = pick.whole("train_dataset.batch_size", 1), pick.whole(f"{role}.ppo_n_minibatches", 4)
    tokens, optimizer = pick.whole(f"{role}.mb_spec.max_tokens_per_mb"), pick.text(f"{role}.optimizer.type", "adam")
    sizes = {} if backend is None else backend.sizes
    offload = pick.flag(f"{role}.offload") or (role == "actor" and _together(config))
    found: dict[str, Any] = {
        "mini_batch_size": batch // parts if parts > 0 and batch % parts == 0 else UNKNOWN,
        "dynamic_batch": tokens is not None,
        "infer_dynamic_batch": tokens is not None,
        "optim.name": {"adam": "adamw", "sgd": "sgd"}.get(optimizer, UNKNOWN),
        "model.trust_remote_code": True,
        "model.remove_padding": True,
        "sharding.strategy": UNKNOWN if backend is None or backend.name == "archon" else {
            "fsdp": "fsdp2"}.get(backend.name, backend.name),
        "sharding.sequence_parallel": 1,
        "sharding.param_offload": offload,
        "sharding.grad_offload": offload,
        "sharding.optimizer_offload": offload,
        # fsdp_utils/parallel.py and vocab_parallel.py (4aef98d)
        "sharding.reshard_after_forward": True,
        "sharding.shard_size": -1,
        "sharding.cpu_optimizer_share": 0.0,
        "chunked_logits": True, "chunk_tokens": 1024, "model.fused_kernels": False,
    }  # fmt: skip
    for letter, name in {"t": "tensor", "p": "pipeline", "c": "context", "e": "expert"}.items():
        found[f"sharding.{name}_parallel"] = UNKNOWN if backend is None else sizes.get(letter, 1)
    # Ulysses of FSDP is the context size there.
    if backend is not None and backend.name == "fsdp":
        found |= {"sharding.sequence_parallel": sizes.get("c", 1), "sharding.context_parallel": 1}
    if role != "actor":
        found["own_gpus"] = 0 if backend is None or _with(config, role, "actor") else backend.gpus
    return found


def _refused(config: Config, spec: RunSpec) -> Iterator[Refusal]:
    """What the dataclasses, `_validate_cfg` of the trainer and the grammar of backends stop at."""
    del spec
    pick = config.pick
    for role in ("actor", "rollout", *(one for one in ("ref", "critic", "teacher") if _has(config, one))):
        yield from _backend_refused(config, role)
    actor, rollout = _backend(config, "actor"), _backend(config, "rollout")
    if pick.flag("actor.use_sapo_loss") and pick.flag("actor.use_decoupled_loss"):
        yield Refusal("actor.use_decoupled_loss", "expected false with actor.use_sapo_loss, got true")
    if (epochs := pick.whole("total_train_epochs", 1)) <= 0:
        yield Refusal("total_train_epochs", f"expected more than 0, got {epochs}")
    engines = (actor.name, rollout.name) if actor is not None and rollout is not None else ()
    if engines == ("megatron", "sglang") and pick.flag("actor.use_lora"):
        yield Refusal("actor.use_lora", "expected rollout by vllm with LoRA on megatron, got sglang")
    if rollout is not None and rollout.name == "vllm" and pick.flag("rollout.return_routed_experts"):
        yield Refusal("rollout.return_routed_experts", "expected rollout by sglang with it, got vllm")
    yield from _offload(config)
    yield from _norms(config)
    yield from _rejection(config)


def _backend_refused(config: Config, role: str) -> Iterator[Refusal]:
    key, wanted = f"{role}.backend", _SERVES if role == "rollout" else _TRAINS
    text, found = config.pick.text(key), _backend(config, role)
    if text is None and role == "actor" and _has(config, role) and key not in config.open_keys:
        yield Refusal(key, "expected a backend and its sizes such as fsdp:d4, got none", lacks=True)
    if text is None or key in config.open_keys:
        return
    if found is None:
        yield Refusal(key, f"expected a backend and its sizes such as {wanted[0]}:d4, got {text}")
    elif found.name not in wanted:
        yield Refusal(key, f"expected {' or '.join(wanted)}, got {found.name}")
    elif found.name == "fsdp" and (found.sizes.get("p", 1) > 1 or found.sizes.get("e", 1) > 1):
        yield Refusal(key, f"expected data, tensor and context sizes alone with fsdp, got {text}")
    elif found.sizes.get("e", 1) > 1 and found.gpus % (found.sizes["e"] * found.sizes.get("p", 1)):
        yield Refusal(key, f"expected expert × pipeline sizes that divide the {found.gpus} GPUs, got {text}")


def _offload(config: Config) -> Iterator[Refusal]:
    pick, together = config.pick, _together(config)
    offloads = [f"{role}.offload" for role in ("actor", "ref", "critic", "teacher") if pick.flag(f"{role}.offload")]
    if (together or offloads) and not pick.flag("enable_offload"):
        yield Refusal("enable_offload", f"expected true with {offloads[0] if offloads else 'colocation'}, got false")
    if together and pick.text("actor.weight_update_mode", "xccl") != "disk":
        yield Refusal("actor.weight_update_mode", f"expected disk with colocation, got "
                      f"{pick.text('actor.weight_update_mode')}")  # fmt: skip


def _norms(config: Config) -> Iterator[Refusal]:
    for at in ("actor.reward_norm", "actor.adv_norm"):
        for key in (f"{at}.mean_level", f"{at}.std_level"):
            level = config.pick.text(key)
            if level is not None and level not in ("batch", "group"):
                yield Refusal(key, f"expected batch, group or null, got {level}")
        if config.pick.whole(f"{at}.group_size", 1) < 1:
            yield Refusal(f"{at}.group_size", f"expected at least 1, got {config.pick.whole(f'{at}.group_size')}")


def _rejection(config: Config) -> Iterator[Refusal]:
    pick, at = config.pick, "actor.rejection_sampling"
    if not _has(config, at):
        return
    metric, upper = pick.text(f"{at}.metric", "ratio"), pick.number(f"{at}.upper", 5.0)
    if metric == "ratio" and upper <= 1:
        yield Refusal(f"{at}.upper", f"expected more than 1 of a ratio, got {upper:g}")
    if pick.text(f"{at}.action") == "clamp" and metric != "ratio":
        yield Refusal(f"{at}.action", f"expected mask with {metric}, got clamp")
    lower = pick.number(f"{at}.lower")
    if lower is not None and lower > upper:
        yield Refusal(f"{at}.lower", f"expected at most upper = {upper:g}, got {lower:g}")


def _is_own(words: Sequence[str]) -> bool:
    """Whether a program is told a YAML and overrides of keys that AReaL has."""
    return "areal" in words[0] or any(_KEY.match(word) for word in words)


TRAINER = Trainer(
    name="areal",
    title="AReaL",
    command=re.compile(
        r"areal\.infra\.launcher\.(?:local|ray|slurm)|(?:.*/)?(?:gsm8k_(?:rl|rl_mt)|geometry3k_grpo|clevr_count_70k_grpo"
        r"|virl39k_grpo|train_tir|train|\w*_(?:rl|grpo))\.py"
    ),
    signs=("areal", "gsm8k_rl", "_grpo.py", "scheduler.type"),
    kind="grpo",
    fields=_FIELDS,
    named=_NAMED,
    derive=_derive,
    lacks=_LACKS,
    refused=_refused,
    style="overrides",
    documents=True,
    config_option="--config",
    owns=_is_own,
    sections={f"train_dataset.type={kind}": "" for kind in ("sft", "rw", "dpo")},
    # A program of one's own has a subclass of the config.
    extended=frozenset(("grpo",)),
)
