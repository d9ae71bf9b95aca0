"""TRL: GRPO, RLOO, PPO and asynchronous GRPO, by YAML, command line, or the calls of a Python file (TRL 1.16.0)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.launchers import sharding, world
from rlcheck.measure.config.trainer import UNKNOWN, Refusal, Trainer

_FIELDS = {
    "run_dir": "output_dir",
    "experiment": "run_name",
    "actor.model.gradient_checkpointing": "gradient_checkpointing",
    "actor.model.liger": "use_liger_kernel",
    "actor.model.lora_alpha": "lora_alpha",
    "actor.optim.lr": "learning_rate",
    "actor.optim.weight_decay": "weight_decay",
    "actor.optim.name": "optim",
    "actor.micro_batch_size": "per_device_train_batch_size",
    "actor.torch_compile": "torch_compile",
    "actor.clip_ratio": "epsilon",
    "actor.clip_ratio_high": "epsilon_high",
    "actor.entropy_coeff": "entropy_coef",
    "actor.kl_loss_coef": "beta",
    "critic.cliprange_value": "cliprange_value",
    "critic.model.path": "reward_model_path",
    "rollout.n": "num_generations",
    "rollout.temperature": "temperature",
    "rollout.top_p": "top_p",
    "rollout.memory_utilization": "vllm_gpu_memory_utilization",
    "rollout.sleeps": "vllm_enable_sleep_mode",
    "rollout.tensor_parallel": "vllm_tensor_parallel_size",
    "rollout.max_model_len": "vllm_max_model_length",
    "data.max_response_length": "max_completion_length",
    "data.max_prompt_length": "max_prompt_length",
    "data.template_kwargs": "chat_template_kwargs",
    "algorithm.kl_coef": "beta",
}
_NAMED = {
    "colocated": "vllm_mode",
    "total_steps": "max_steps",
    "total_epochs": "num_train_epochs",
    "save_freq": "save_steps",
    "test_freq": "eval_steps",
    "loggers": "report_to",
    "actor.epochs": "num_iterations",
    "actor.mini_batch_size": "gradient_accumulation_steps",
    "actor.model.path": "model_name_or_path",
    "actor.model.lora_rank": "lora_r",
    "actor.model.target_modules": "lora_target_modules",
    "actor.model.trust_remote_code": "trust_remote_code",
    "actor.optim.grad_clip": "max_grad_norm",
    "actor.optim.lr_scheduler_type": "lr_scheduler_type",
    "actor.optim.lr_warmup_steps": "warmup_steps",
    "actor.optim.lr_warmup_steps_ratio": "warmup_ratio",
    "actor.sharding.dtype": "bf16",
    "actor.sharding.model_dtype": "dtype",
    "actor.loss_mode": "loss_type",
    "actor.loss_agg_mode": "loss_type",
    "actor.use_kl_loss": "beta",
    "data.train_batch_size": "generation_batch_size",
    "data.train_files": "dataset_name",
    "algorithm.use_kl_in_reward": "beta",
    "algorithm.norm_adv_by_std_in_grpo": "scale_rewards",
    "algorithm.rollout_is": "vllm_importance_sampling_correction",
    "rollout.name": "use_vllm",
    "rollout.top_k": "top_k",
    "rollout.dtype": "bf16",
    "gpus_per_node": "num_processes",
    "nodes": "num_machines",
}
_LACKS = frozenset((
    "actor.model.remove_padding", "actor.dynamic_batch", "actor.infer_dynamic_batch", "critic_warmup",
    "actor.clip_ratio_c", "actor.sharding.offload_policy",
))  # fmt: skip
# trl/trainer/grpo_trainer.py and grpo_config.py: how each loss adds tokens up, under verl's names.
_AGGREGATED = {"dapo": "token-mean", "bnpo": "token-mean", "grpo": "seq-mean-token-mean",
               "dr_grpo": "seq-mean-token-sum-norm"}  # fmt: skip
_MODEL = {"model": "model_name_or_path"}
_LORA = {"r": "lora_r", "lora_alpha": "lora_alpha", "target_modules": "lora_target_modules", "use_dora": "use_dora",
         "use_rslora": "use_rslora", "lora_dropout": "lora_dropout"}  # fmt: skip
_KINDS = {"GRPOConfig": "grpo", "RLOOConfig": "rloo", "PPOConfig": "ppo", "AsyncGRPOConfig": "async_grpo"}


def _sizes(config: Config) -> tuple[int, int, int | None]:
    """Samples of a device in one pass, passes to an optimizer step, and to a generation (None: by its batch)."""
    pick = config.pick
    accumulated = pick.whole("gradient_accumulation_steps", 1)
    steps = pick.whole("steps_per_generation")
    if steps is None and pick.whole("generation_batch_size") is None:
        steps = accumulated
    return pick.whole("per_device_train_batch_size", 8), accumulated, steps


def _batches(config: Config) -> dict[str, Any]:
    """A step is what is generated at once, and a mini batch what the optimizer takes: both in prompts."""
    pick, (nodes, each) = config.pick, world(config)
    device, accumulated, steps = _sizes(config)
    n, found = pick.whole("num_generations", 0), {"data.train_batch_size": UNKNOWN, "actor.mini_batch_size": UNKNOWN}
    if config.kind not in ("grpo", "rloo") or n < 1:
        return found
    ranks = None if each is None else (nodes or 1) * each
    generated = pick.whole("generation_batch_size")
    if generated is None and ranks is not None and steps is not None:
        generated = device * ranks * steps
    if generated is not None and generated % n == 0:
        found["data.train_batch_size"] = generated // n
    if ranks is not None and device * accumulated * ranks % n == 0:
        found["actor.mini_batch_size"] = device * accumulated * ranks // n
    return found


def _derive(config: Config) -> dict[str, Any]:
    pick, (nodes, each) = config.pick, world(config)
    vllm, server = pick.flag("use_vllm"), pick.text("vllm_mode") == "server" or config.kind == "async_grpo"
    beta, ppo = pick.number("beta", 0.0), config.kind == "ppo"
    return {
        "nodes": UNKNOWN if nodes is None else nodes,
        "gpus_per_node": UNKNOWN if each is None else each,
        "device": "cpu" if pick.flag("use_cpu") else "cuda",
        "expandable_segments": False,
        "colocated": not (server and (vllm or config.kind == "async_grpo")),
        "rollout_nodes": 0,
        "ray_address": "",
        "rollout_gpus_per_node": UNKNOWN if server else 0,
        "ref": ppo or beta > 0,
        "critic": ppo,
        "reward_model": ppo,
        "project": "",
        "total_steps": steps if (steps := pick.whole("max_steps", -1)) > 0 else None,
        "total_epochs": pick.whole("num_train_epochs") or UNKNOWN,
        "save_freq": _frequency(config, "save"),
        "test_freq": _frequency(config, "eval"),
        "loggers": UNKNOWN if "all" in (names := pick.words("report_to")) else tuple(
            name for name in names if name != "none"),
        "algorithm.adv_estimator": {"rloo": "rloo", "ppo": "gae"}.get(config.kind, "grpo"),
        "algorithm.gamma": pick.number("gamma", 1.0),
        "algorithm.lam": pick.number("lam", 0.95 if ppo else 1.0),
        "algorithm.use_kl_in_reward": ppo or (config.kind == "rloo" and beta > 0),
        "algorithm.kl_coef": pick.number("kl_coef", 0.05) if ppo else beta,
        "algorithm.kl_ctrl_type": "fixed",
        "algorithm.norm_adv_by_std_in_grpo": pick.raw("scale_rewards") not in ("none", "False", False),
        "algorithm.rollout_is": "token" if vllm and pick.flag("vllm_importance_sampling_correction") else None,
        "algorithm.bypass_mode": False,
        "data.train_files": _local(pick.text("dataset_name")),
        "data.val_files": (),
        "data.prompt_key": "prompt",
        "data.made": "",
        **_batches(config),
        **_actor(config, beta),
        **_rollout(config, vllm or config.kind == "async_grpo"),
    }  # fmt: skip


def _frequency(config: Config, name: str) -> Any:
    """Steps between checkpoints or evaluations; -1: never; what is a share of the run, or by epochs, is left open."""
    strategy = config.pick.text(f"{name}_strategy", "no" if name == "eval" else "steps")
    if strategy != "steps":
        return -1 if strategy == "no" else UNKNOWN
    steps = config.pick.number(f"{name}_steps")
    return int(steps) if steps is not None and steps >= 1 else UNKNOWN


def _local(name: str | None) -> Any:
    return (name,) if name is not None and name.startswith(("/", ".", "~")) else ()


def _actor(config: Config, beta: float) -> dict[str, Any]:
    pick, ppo = config.pick, config.kind == "ppo"
    loss, level = pick.text("loss_type", ""), pick.text("importance_sampling_level", "token")
    peft = pick.flag("use_peft") or ("lora_r" in config.given and "use_peft" not in config.given)
    half = pick.flag("fp16")
    computes = "float16" if half else "float32" if pick.raw("bf16") is False else "bfloat16"
    inner = pick.mapping("model_init_kwargs")
    warmup = pick.number("warmup_steps")
    found: dict[str, Any] = {
        "actor.model.path": pick.text("model_name_or_path") or pick.text("sft_model_path") or UNKNOWN,
        "actor.model.lora_rank": pick.whole("lora_r", 0) if peft else 0,
        "actor.model.target_modules": pick.words_or_text("lora_target_modules", "") or UNKNOWN,
        "actor.model.trust_remote_code": pick.flag("trust_remote_code") or bool(inner.get("trust_remote_code")),
        "actor.epochs": pick.whole("num_ppo_epochs", 4) if ppo else pick.whole("num_iterations", 1),
        "actor.clip_ratio": pick.number("cliprange" if ppo else "epsilon", 0.2),
        "actor.clip_ratio_low": None,
        "actor.use_kl_loss": config.kind in ("grpo", "async_grpo") and beta > 0,
        "actor.loss_mode": "gspo" if level == "sequence" else "vanilla" if loss in (*_AGGREGATED, "") else loss,
        "actor.loss_agg_mode": _AGGREGATED.get(loss, UNKNOWN),
        "actor.optim.lr_warmup_steps": int(warmup) if warmup is not None and warmup >= 1 else -1,
        "actor.optim.lr_warmup_steps_ratio": pick.number("warmup_ratio") or (
            warmup if warmup is not None and 0 < warmup < 1 else 0.0),
        "actor.optim.lr_scheduler_type": pick.text("lr_scheduler_type", "linear"),
        # Trainer clips nothing at 0.
        "actor.optim.grad_clip": pick.number("max_grad_norm", 1.0) or None,
        "actor.sharding.model_dtype": (kept := _model_dtype(config, inner)),
        "ref.sharding.model_dtype": kept,
        **_heads(config),
        "ref.shares_actor": peft,
        "critic.optim.lr": pick.number("learning_rate", 3e-6),
    }  # fmt: skip
    # DeepSpeed adds gradients up in the type that it computes in.
    shards = {"dtype": computes, "reduce_dtype": computes, **sharding(config)}
    for role in ("actor", "ref", "critic", "reward_model"):
        found |= {f"{role}.sharding.{name}": value for name, value in shards.items()}
        found |= {f"{role}.sharding.{name}_parallel": 1 for name in (
            "sequence", "tensor", "pipeline", "context", "expert")}  # fmt: skip
        found[f"{role}.own_gpus"] = 0
    if str(shards["strategy"]).startswith("fsdp") and computes != "float32":
        # accelerate/accelerator.py and utils/fsdp_utils.py (16cb6eb): what learns is kept in float32.
        found["actor.sharding.model_dtype"] = "float32"
    return found


def _heads(config: Config) -> dict[str, Any]:
    """How log-probabilities are made: by tiles of the head (`add_fused_lm_head`, 1.16.0), before from whole logits."""
    fused = _number(config.version) >= (1, 16) and config.kind in ("grpo", "rloo")
    found: dict[str, Any] = {}
    for role in ("actor", "ref", "critic", "reward_model"):
        found[f"{role}.model.fused_kernels"] = fused and role in ("actor", "ref")
        found |= {f"{role}.chunked_logits": False, f"{role}.infer_dynamic_batch": False}
        found[f"{role}.infer_micro_batch_size"] = config.pick.whole("per_device_train_batch_size", 8)
    return found


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _model_dtype(config: Config, inner: dict[str, Any]) -> Any:
    """As GRPOTrainer loads a model: in float32 unless it is told otherwise; `auto` is what its files hold."""
    found = str(inner.get("dtype") or inner.get("torch_dtype") or config.pick.text("dtype") or "float32")
    return UNKNOWN if found == "auto" else found


def _rollout(config: Config, vllm: bool) -> dict[str, Any]:
    pick = config.pick
    found: dict[str, Any] = {
        "rollout.name": "vllm" if vllm else "hf",
        "rollout.mode": "async" if config.kind == "async_grpo" else "sync",
        "rollout.data_parallel": 1,
        "rollout.pipeline_parallel": 1,
        "rollout.expert_parallel": 1,
        "rollout.top_k": pick.whole("top_k", 0) or -1,
        "rollout.quantization": None,
        "rollout.kv_cache_dtype": "auto",
        "rollout.multi_turn": False,
        "rollout.calculate_log_probs": vllm,
        "rollout.engine_kwargs": {},
        **_engine(config, vllm),
    }
    if not vllm:
        found |= {"rollout.memory_utilization": UNKNOWN, "rollout.tensor_parallel": 1}
    if config.kind == "ppo":
        found |= {"rollout.n": 1, "data.max_response_length": pick.whole("response_length", 53)}
    return found


def _engine(config: Config, vllm: bool) -> dict[str, Any]:
    """What trl/generation/vllm_generation.py (1.16.0) gives to vLLM beside its options; a server's are its own."""
    pick, (device, _, steps) = config.pick, _sizes(config)
    here = vllm and pick.text("vllm_mode") == "colocate" and config.kind != "async_grpo"
    tensor = pick.whole("vllm_tensor_parallel_size", 1)
    return {
        "rollout.in_process": here or not vllm,
        # A server of its own: what it is given, its own command line says.
        "rollout.enforce_eager": UNKNOWN if vllm and not here else False,
        "rollout.max_seqs": UNKNOWN if (vllm and not here) or steps is None else device * tensor * steps,
        "rollout.max_batched_tokens": 4096 if here else UNKNOWN,
        "rollout.sync_bucket_bytes": 0,
        # vLLM's "auto": 16 bits, whatever the files hold.
        "rollout.dtype": "auto",
    }


def _refused(config: Config, spec: RunSpec) -> Iterator[Refusal]:
    """What `__post_init__` of the configs raises (trl/trainer/grpo_config.py, model_config.py)."""
    pick, n = config.pick, config.pick.whole("num_generations", 0)
    if pick.flag("load_in_8bit") and pick.flag("load_in_4bit"):
        yield Refusal("load_in_8bit", "expected 8 or 4 bits, got both")
    if config.kind not in ("grpo", "rloo"):
        return
    if 0 < n < 2 or (n < 1 and "num_generations" in config.given):
        yield Refusal("num_generations", f"expected at least 2, which a group baseline needs, got {n}")
        return
    given = pick.whole("generation_batch_size")
    if given is not None and pick.whole("steps_per_generation") is not None:
        yield Refusal("steps_per_generation", "expected this or generation_batch_size, got both")
        return
    device, _, steps = _sizes(config)
    nodes, each = world(config)
    ranks = None if each is None else (nodes or 1) * each
    if given is not None and ranks is not None and given % (device * ranks):
        yield Refusal("generation_batch_size", f"expected a multiple of per_device_train_batch_size × processes = "
                      f"{device * ranks}, got {given}")  # fmt: skip
    elif given is not None and n and given % n:
        yield Refusal("generation_batch_size", f"expected a multiple of num_generations = {n}, got {given}")
    elif given is None and ranks is not None and steps is not None and n and device * ranks * steps % n:
        yield Refusal("num_generations", f"expected a divisor of the generation batch, {device} a device × {ranks} "
                      f"processes × {steps} steps = {device * ranks * steps}, got {n}")  # fmt: skip
    if pick.flag("auto_find_batch_size"):
        yield Refusal("auto_find_batch_size", "expected false: groups need whole batches, got true")
    if pick.raw("log_completions_hub_repo") is not None and not pick.flag("log_completions"):
        yield Refusal("log_completions_hub_repo", "expected log_completions beside it, got none")
    low, high = (pick.number(f"vllm_importance_sampling_clip_{side}") for side in ("min", "max"))
    if low is not None and high is not None and low >= high:
        yield Refusal("vllm_importance_sampling_clip_min", f"expected less than clip_max = {high:g}, got {low:g}")
    if pick.flag("use_vllm") and spec.colocated and ranks is not None:
        tensor = pick.whole("vllm_tensor_parallel_size", 1)
        if tensor < 1 or ranks % tensor:
            yield Refusal("vllm_tensor_parallel_size", f"expected a divisor of the {ranks} processes, got {tensor}")


# A program that has GRPOConfig parsed takes some option of it, and one that every TrainingArguments has.
_OWN = re.compile(r"--(?:num_generations|max_completion_length|steps_per_generation|vllm_mode)(?:=.*)?")
_USUAL = re.compile(
    r"--(?:per_device_train_batch_size|gradient_accumulation_steps|output_dir|learning_rate|num_train_epochs)(?:=.*)?"
)


def _adopts(words: Sequence[str]) -> bool:
    return any(map(_OWN.fullmatch, words)) and any(map(_USUAL.fullmatch, words))


TRAINER = Trainer(
    name="trl",
    title="TRL",
    command=re.compile(r"trl (?P<kind>grpo|rloo)|(?:.*[./])?trl[./]scripts[./](?P<script>grpo|rloo)(?:\.py)?"),
    signs=("trl grpo", "trl rloo", "trl.scripts", "trl/scripts"),
    kind="grpo",
    fields=_FIELDS,
    named=_NAMED,
    derive=_derive,
    lacks=_LACKS,
    refused=_refused,
    adopts=_adopts,
    choices={
        "vllm_mode": ("server", "colocate"),
        "vllm_model_impl": ("vllm", "transformers"),
        "scale_rewards": ("group", "batch", "none", "True", "False"),
        # The last one is of trl.experimental.gspo_token.
        "importance_sampling_level": ("token", "sequence", "sequence_token"),
        "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
        "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
        "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    },
    asserts=frozenset(("CFG018", "CFG024")),
    documents=True,
    config_option="--config",
    beside=frozenset(("env",)),
    launcher_options=("--config_file", "--accelerate_config"),
    calls={
        **dict.fromkeys(_KINDS), "ModelConfig": None, "ScriptArguments": None, "LoraConfig": _LORA,
        "GRPOTrainer": _MODEL, "RLOOTrainer": _MODEL, "AsyncGRPOTrainer": _MODEL,
    },
    kinds=_KINDS,
)  # fmt: skip
