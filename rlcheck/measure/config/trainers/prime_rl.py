"""prime-rl: TOML files and dotted options of its entry points (PrimeIntellect-ai/prime-rl@559b447)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.trainer import UNKNOWN, Refusal, Trainer

_FIELDS = {
    "run_dir": "output_dir",
    "actor.model.trust_remote_code": "trainer.model.trust_remote_code",
    "actor.optim.name": "trainer.optim.type",
    "actor.optim.lr": "trainer.optim.lr",
    "actor.optim.weight_decay": "trainer.optim.weight_decay",
    "actor.optim.grad_clip": "trainer.optim.max_norm",
    "actor.optim.lr_scheduler_type": "trainer.scheduler.type",
    "actor.sharding.reshard_after_forward": "trainer.model.reshard_after_forward",
    "actor.sharding.model_dtype": "trainer.model.optimization_dtype",
    "actor.sharding.reduce_dtype": "trainer.model.reduce_dtype",
    "actor.sharding.offload_policy": "trainer.model.fsdp_cpu_offload",
    "actor.sharding.optimizer_offload": "trainer.model.optim_cpu_offload",
    "rollout.n": "orchestrator.group_size",
    "rollout.temperature": "orchestrator.train.sampling.temperature",
    "rollout.memory_utilization": "inference.vllm.gpu_memory_utilization",
    "rollout.enforce_eager": "inference.vllm.enforce_eager",
    "rollout.tensor_parallel": "inference.vllm.tensor_parallel_size",
    "rollout.max_model_len": "inference.vllm.max_model_len",
    "data.max_response_length": "orchestrator.train.sampling.max_completion_tokens",
}
_NAMED = {
    "nodes": "deployment.num_train_nodes",
    "gpus_per_node": "deployment.num_train_gpus",
    "rollout_nodes": "deployment.num_infer_nodes",
    "rollout_gpus_per_node": "deployment.num_infer_gpus",
    "project": "monitors.wandb.project",
    "experiment": "run.name",
    "save_freq": "ckpt.interval",
    "test_freq": "orchestrator.eval.interval",
    "total_steps": "max_steps",
    "actor.model.path": "model.name",
    "actor.model.lora_rank": "trainer.model.lora.rank",
    "actor.model.lora_alpha": "trainer.model.lora.alpha",
    "actor.model.target_modules": "trainer.model.lora.target_modules",
    "actor.model.gradient_checkpointing": "trainer.model.ac",
    "actor.model.activation_offload": "trainer.model.ac_offloading",
    "actor.mini_batch_size": "orchestrator.batch_size",
    "actor.max_tokens": "seq_len",
    "actor.loss_mode": "trainer.loss.type",
    "actor.optim.lr_warmup_steps": "trainer.scheduler.warmup_steps",
    "actor.sharding.shard_size": "trainer.model.dp_replicate",
    "actor.sharding.context_parallel": "trainer.model.cp",
    "actor.sharding.expert_parallel": "trainer.model.ep",
    "actor.chunked_logits": "trainer.model.fused_lm_head_token_chunk_size",
    "algorithm.adv_estimator": "orchestrator.algo.type",
    "data.train_batch_size": "orchestrator.batch_size",
    "rollout.dtype": "inference.vllm.dtype",
    "rollout.data_parallel": "inference.vllm.data_parallel_size",
}
_LACKS = frozenset((
    "actor.clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high", "actor.clip_ratio_c", "actor.use_kl_loss",
    "actor.entropy_coeff", "actor.infer_micro_batch_size", "rollout.sleeps", "critic_warmup",
    "data.filter_overlong_prompts", "algorithm.norm_adv_by_std_in_grpo",
))  # fmt: skip
# prime_rl/utils/validation.py: shared keys and those that may not say otherwise.
_SHARED = {
    "model.name": ("trainer.model.name", "orchestrator.model.name", "inference.vllm.model"),
    "max_steps": ("trainer.max_steps", "orchestrator.max_steps"),
    "seq_len": ("trainer.model.seq_len", "orchestrator.seq_len"),
    "ckpt.interval": ("trainer.ckpt.interval", "orchestrator.ckpt.interval"),
    "log.level": ("trainer.log.level", "orchestrator.log.level", "inference.log.level"),
}
# Configs of one process of a run, which say nothing of the others: their keys are judged, and nothing else.
_PARTS = ("trainer", "orchestrator", "inference", "sft", "evals", "env-server")


def _is_on(config: Config, section: str) -> bool:
    """Whether an optional section is there: given, or something in it, or there unless it is turned off."""
    if config.values.get(section) is not None:
        return True
    return section not in config.given and any(key.startswith(f"{section}.") for key in config.given)


def _shared(config: Config, key: str) -> Any:
    """A key that the run shares, else the first of its parts' that is given; else the part's default."""
    names = (key, *_SHARED[key])
    return next((config.values.get(name) for name in names if name in config.given), config.values.get(_SHARED[key][0]))


def _is_multi(config: Config) -> bool:
    return config.pick.text("deployment.type", "single_node") == "multi_node"


def _places(config: Config) -> dict[str, Any]:
    pick, serves = config.pick, _is_on(config, "inference")
    if not _is_multi(config):
        return {
            "nodes": 1,
            "gpus_per_node": pick.whole("deployment.num_train_gpus", 1),
            "rollout_nodes": 0,
            "rollout_gpus_per_node": pick.whole("deployment.num_infer_gpus", 1) if serves else UNKNOWN,
        }
    each, infer = pick.whole("deployment.gpus_per_node", 8), pick.whole("deployment.num_infer_nodes")
    nodes = pick.whole("deployment.num_train_nodes")
    return {
        "nodes": UNKNOWN if nodes is None else nodes,
        "gpus_per_node": each,
        "rollout_nodes": UNKNOWN if infer is None else infer * pick.whole("deployment.num_infer_replicas", 1),
        "rollout_gpus_per_node": each if serves else UNKNOWN,
    }


def _derive(config: Config) -> dict[str, Any]:
    if config.kind in _PARTS:
        return {"ref": False, "critic": False, "reward_model": False}
    pick = config.pick
    n, samples = pick.whole("orchestrator.group_size", 1), pick.whole("orchestrator.batch_size")
    if samples is None and pick.whole("orchestrator.token_batch_size") is None:
        samples = 128
    prompts = samples // n if samples is not None and n > 0 and samples % n == 0 else UNKNOWN
    steps = _shared(config, "max_steps")
    algorithm = pick.text("orchestrator.algo.type", "grpo")
    watched = _is_on(config, "monitors.wandb") or _is_on(config, "trainer.monitors.wandb")
    return {
        **_places(config),
        "device": "cuda",
        "colocated": False,
        "ray_address": "",
        "ref": False,
        "critic": False,
        "reward_model": False,
        "project": pick.text("monitors.wandb.project", "prime-rl"),
        "experiment": pick.text("run.name") or UNKNOWN,
        "loggers": ("wandb",) if watched else (),
        "save_freq": _shared(config, "ckpt.interval") or -1,
        "test_freq": pick.whole("orchestrator.eval.interval", 100) if _is_on(config, "orchestrator.eval") else -1,
        "total_steps": steps if isinstance(steps, int) else None,
        "total_epochs": UNKNOWN,
        "algorithm.adv_estimator": "grpo" if algorithm in ("grpo", "echo") else UNKNOWN,
        "algorithm.use_kl_in_reward": False,
        "algorithm.gamma": 1.0,
        "algorithm.lam": 1.0,
        "algorithm.rollout_is": UNKNOWN,
        "algorithm.bypass_mode": True,
        "data.train_batch_size": prompts,
        "data.train_files": (),
        "data.val_files": (),
        "data.made": "",
        "reward.function_path": None,
        "reward.endpoints": (),
        "actor.mini_batch_size": prompts,
        **_actor(config),
        **_rollout(config),
    }


def _actor(config: Config) -> dict[str, Any]:
    pick = config.pick
    adapts, replicas = _is_on(config, "trainer.model.lora"), pick.whole("trainer.model.dp_replicate", 1)
    places = _places(config)
    ranks = places["nodes"] * places["gpus_per_node"] if places["nodes"] is not UNKNOWN else None
    experts, length = pick.whole("trainer.model.ep"), _shared(config, "seq_len")
    chunk = pick.whole("trainer.model.fused_lm_head_token_chunk_size")
    constant = pick.text("trainer.scheduler.type", "constant") == "constant"
    found: dict[str, Any] = {
        "actor.model.path": _shared(config, "model.name"),
        "actor.model.tokenizer_path": pick.text("tokenizer.name") or pick.text("trainer.tokenizer.name"),
        "actor.model.custom_chat_template": pick.text("tokenizer.chat_template"),
        "actor.model.lora_rank": pick.whole("trainer.model.lora.rank", 16) if adapts else 0,
        "actor.model.lora_alpha": pick.number("trainer.model.lora.alpha", 32.0),
        "actor.model.target_modules": tuple(pick.words("trainer.model.lora.target_modules")),
        "actor.model.gradient_checkpointing": _is_on(config, "trainer.model.ac"),
        "actor.model.activation_offload": _is_on(config, "trainer.model.ac_offloading"),
        "actor.model.remove_padding": True,
        "actor.epochs": 1,
        "actor.micro_batch_size": None,
        "actor.dynamic_batch": True,
        "actor.max_tokens": length if isinstance(length, int) else UNKNOWN,
        # FusedOutputLinear (trainer/models/layers/lm_head.py): a chunk of tokens by 8,192 of the vocabulary at a time.
        "actor.chunked_logits": False,
        "actor.block_elements": (chunk or 0) * 8192,
        "actor.chunk_tokens": UNKNOWN if chunk is None else chunk,
        "actor.torch_compile": _is_on(config, "trainer.model.compile"),
        "actor.loss_mode": UNKNOWN,
        "actor.optim.lr_warmup_steps": -1 if constant else pick.whole("trainer.scheduler.warmup_steps", 10),
        "actor.optim.lr_warmup_steps_ratio": 0.0,
        "actor.own_gpus": 0,
        "actor.infer_dynamic_batch": True,
        "actor.infer_max_tokens": length if isinstance(length, int) else UNKNOWN,
        "actor.model.fused_kernels": chunk is not None,
        "actor.sharding.strategy": "fsdp2",
        "actor.sharding.shard_size": UNKNOWN if ranks is None else -1 if replicas <= 1 else ranks // replicas,
        # prime_rl/trainer/model.py
        "actor.sharding.dtype": "bfloat16",
        "actor.sharding.sequence_parallel": 1,
        "actor.sharding.tensor_parallel": 1,
        "actor.sharding.pipeline_parallel": 1,
        "actor.sharding.context_parallel": pick.whole("trainer.model.cp", 1),
        "actor.sharding.expert_parallel": UNKNOWN if experts is None else experts,
        "actor.sharding.param_offload": False,
    }
    if _is_on(config, "trainer.model.full_offload"):
        found["actor.sharding.optimizer_offload"] = UNKNOWN
    return found


def _rollout(config: Config) -> dict[str, Any]:
    pick, given = config.pick, config.given
    caching, length = pick.raw("inference.vllm.enable_prefix_caching"), _shared(config, "seq_len")
    return {
        # What is longer is cut to seq_len before it is trained on (orchestrator/packing.py).
        "rollout.max_model_len": pick.whole("inference.vllm.max_model_len") or (
            length if isinstance(length, int) else UNKNOWN),
        "rollout.name": "vllm",
        "rollout.mode": "async",
        "rollout.top_p": 1.0,
        "rollout.top_k": -1,
        "rollout.dtype": UNKNOWN if pick.text("inference.vllm.dtype", "auto") == "auto" else pick.text(
            "inference.vllm.dtype"),
        "rollout.data_parallel": pick.whole("inference.vllm.data_parallel_size", 1) if (
            "inference.vllm.data_parallel_size" in given) else UNKNOWN,
        "rollout.pipeline_parallel": 1,
        "rollout.expert_parallel": UNKNOWN if pick.flag("inference.vllm.enable_expert_parallel") else 1,
        "rollout.prefix_caching": UNKNOWN if caching is None else bool(caching),
        "rollout.quantization": UNKNOWN,
        "rollout.calculate_log_probs": True,
        "rollout.multi_turn": UNKNOWN,
        "rollout.engine_kwargs": {},
    }  # fmt: skip


def _refused(config: Config, spec: RunSpec) -> Iterator[Refusal]:
    """What validators of the models raise (packages/prime-rl-configs)."""
    del spec
    if config.kind in _PARTS:
        return
    yield from _conflicts(config)
    yield from _deployed(config)
    yield from _orchestrated(config)
    yield from _trained(config)


def _conflicts(config: Config) -> Iterator[Refusal]:
    for shared, parts in _SHARED.items():
        value = config.values.get(shared) if shared in config.given else None
        for part in parts:
            mine = config.values.get(part)
            if value is not None and mine is not None and part in config.given and mine != value:
                yield Refusal(part, f"expected {shared} = {value} or none of its own, got {mine}")
    if config.pick.flag("monitors.wandb.offline"):
        yield Refusal("monitors.wandb.offline", "expected false: the processes share a run online, got true")
    if config.pick.whole("resume.step") is not None and config.pick.text("resume.dir"):
        yield Refusal("resume.dir", "expected resume.step or resume.dir, got both")


def _deployed(config: Config) -> Iterator[Refusal]:
    pick = config.pick
    each, broadcast = pick.whole("deployment.gpus_per_node", 8), pick.text("weight_broadcast.type")
    train, infer = pick.whole("deployment.num_train_gpus", 1), pick.whole("deployment.num_infer_gpus", 1)
    if not _is_multi(config):
        if train + infer > each:
            key = "num_train_gpus" if "deployment.num_train_gpus" in config.given else "num_infer_gpus"
            yield Refusal(f"deployment.{key}", f"expected at most gpus_per_node = {each} GPUs together, got {train} to "
                          f"train and {infer} to infer")  # fmt: skip
        if broadcast == "nccl" and train + infer < 2:
            yield Refusal("weight_broadcast.type", f"expected at least 2 GPUs for nccl, got {train + infer}")
        return
    if not _is_on(config, "slurm"):
        yield Refusal("deployment.type", "expected a section [slurm] beside multi_node, got none")
    nodes = pick.whole("deployment.num_infer_nodes")
    if nodes and not _is_on(config, "inference"):
        yield Refusal("deployment.num_infer_nodes", "expected a section [inference] beside it, got none")
    if nodes == 0 and _is_on(config, "inference"):
        yield Refusal("deployment.num_infer_nodes", "expected more than 0 beside [inference], got 0")


def _orchestrated(config: Config) -> Iterator[Refusal]:
    pick, top = config.pick, "orchestrator"
    n, samples, tokens = (pick.whole(f"{top}.{name}") for name in ("group_size", "batch_size", "token_batch_size"))
    if samples is not None and tokens is not None:
        yield Refusal(f"{top}.token_batch_size", "expected batch_size or token_batch_size, got both")
    elif tokens is None and (samples or 128) % (n or 1):
        key = f"{top}.batch_size" if samples is not None else f"{top}.group_size"
        yield Refusal(key, f"expected batch_size to be a multiple of group_size, got {samples or 128} and {n}")
    bounds = f"{top}.concurrency"
    most, first = pick.whole(f"{bounds}.max_inflight"), pick.whole(f"{bounds}.initial_inflight")
    least = pick.whole(f"{bounds}.min_inflight", 1)
    for name, value in (("max_inflight", most), ("initial_inflight", first)):
        if value is not None and value < (n or 1):
            yield Refusal(f"{bounds}.{name}", f"expected at least group_size = {n}, got {value}")
    if most is not None and first is not None and first > most:
        yield Refusal(f"{bounds}.initial_inflight", f"expected at most max_inflight = {most}, got {first}")
    if most is not None and least > most:
        yield Refusal(f"{bounds}.min_inflight", f"expected at most max_inflight = {most}, got {least}")


def _trained(config: Config) -> Iterator[Refusal]:
    pick = config.pick
    said, kind = _shared(config, "max_steps"), pick.text("trainer.scheduler.type", "constant")
    steps = said if isinstance(said, int) else None
    warmup, decay = pick.whole("trainer.scheduler.warmup_steps", 10), pick.whole("trainer.scheduler.decay_steps", 10)
    if kind == "cosine" and steps is None:
        yield Refusal("trainer.scheduler.type", "expected max_steps beside cosine, got none")
    elif kind == "cosine" and steps is not None and warmup >= steps:
        yield Refusal("trainer.scheduler.warmup_steps", f"expected less than max_steps = {steps}, got {warmup}")
    if kind == "linear" and decay > 0 and steps is None:
        yield Refusal("trainer.scheduler.type", "expected max_steps beside linear, got none")
    elif kind == "linear" and decay > 0 and steps is not None and warmup + decay > steps:
        key = "warmup" if "trainer.scheduler.warmup_steps" in config.given else "decay"
        yield Refusal(f"trainer.scheduler.{key}_steps", f"expected warmup_steps + decay_steps of at most max_steps = "
                      f"{steps}, got {warmup} + {decay}")  # fmt: skip
    model, implementation = "trainer.model", pick.text("trainer.model.impl", "auto")
    memory = pick.text("weight_broadcast.type", pick.text("trainer.weight_broadcast.type", "filesystem"))
    if _is_on(config, f"{model}.lora") and memory in ("nccl", "nixl"):
        key = "weight_broadcast.type" if "weight_broadcast.type" in config.given else "trainer.weight_broadcast.type"
        yield Refusal(key, f"expected filesystem with LoRA, got {memory}")
    if pick.text("trainer.optim.type") == "muon" and pick.flag(f"{model}.fsdp_cpu_offload"):
        yield Refusal(f"{model}.fsdp_cpu_offload", "expected false with muon, got true")
    if pick.whole(f"{model}.cp", 1) > 1 and implementation == "hf":
        yield Refusal(f"{model}.cp", "expected 1 with impl = hf, got more")
    if (pick.whole(f"{model}.ep") or 1) != 1 and implementation == "hf":
        yield Refusal(f"{model}.ep", "expected 1 with impl = hf, got more")
    if pick.flag(f"{model}.trust_remote_code") and implementation == "custom":
        yield Refusal(f"{model}.trust_remote_code", "expected impl hf or auto beside it, got custom")
    if pick.flag("weight_broadcast.quantize_in_weight_transfer") and implementation != "custom":
        yield Refusal("weight_broadcast.quantize_in_weight_transfer", "expected trainer.model.impl = custom beside it, "
                      f"got {implementation}")  # fmt: skip


def _is_own(words: Sequence[str]) -> bool:
    return any(word == "@" or re.fullmatch(r"@\S+\.(?:toml|json)", word) for word in words)


TRAINER = Trainer(
    name="prime-rl",
    title="prime-rl",
    command=re.compile(r"(?<![\w./-])(?:run )?(?P<kind>rl|sft|trainer|orchestrator|inference|evals)(?![\w./-])"),
    signs=("rl ", "sft ", "trainer ", "orchestrator ", "inference ", "evals "),
    owns=_is_own,
    kind="rl",
    fields=_FIELDS,
    named=_NAMED,
    derive=_derive,
    lacks=_LACKS,
    refused=_refused,
    documents=True,
    file_sign="@",
    kinds={kind: kind for kind in ("rl", *_PARTS)},
)
