"""slime: options of `train.py` beside Megatron's and, with a prefix, SGLang's (THUDM/slime@624b824)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.trainer import UNKNOWN, Refusal, Trainer, layout, versions

FIELDS = {
    "nodes": "actor-num-nodes",
    "gpus_per_node": "actor-num-gpus-per-node",
    "run_dir": "save",
    "project": "wandb-project",
    "experiment": "wandb-group",
    "total_steps": "num-rollout",
    "critic_warmup": "num-critic-only-steps",
    "actor.model.path": "hf-checkpoint",
    "actor.optim.lr": "lr",
    "actor.optim.weight_decay": "weight-decay",
    "actor.optim.lr_scheduler_type": "lr-decay-style",
    "actor.micro_batch_size": "micro-batch-size",
    "actor.dynamic_batch": "use-dynamic-batch-size",
    "actor.max_tokens": "max-tokens-per-gpu",
    "actor.clip_ratio": "eps-clip",
    "actor.clip_ratio_high": "eps-clip-high",
    "actor.clip_ratio_c": "eps-clip-c",
    "actor.entropy_coeff": "entropy-coef",
    "actor.use_kl_loss": "use-kl-loss",
    "actor.kl_loss_coef": "kl-loss-coef",
    "critic.cliprange_value": "value-clip",
    "rollout.n": "n-samples-per-prompt",
    "rollout.temperature": "rollout-temperature",
    "rollout.top_p": "rollout-top-p",
    "rollout.top_k": "rollout-top-k",
    "rollout.max_model_len": "rollout-max-context-len",
    "rollout.memory_utilization": "sglang-mem-fraction-static",
    "rollout.enforce_eager": "sglang-disable-cuda-graph",
    "rollout.max_seqs": "sglang-max-running-requests",
    "rollout.kv_cache_dtype": "sglang-kv-cache-dtype",
    "rollout.val_n": "n-samples-per-eval-prompt",
    "rollout.val_temperature": "eval-temperature",
    "rollout.sync_bucket_bytes": "update-weight-buffer-size",
    "data.prompt_key": "input-key",
    "data.max_prompt_length": "rollout-max-prompt-len",
    "data.max_response_length": "rollout-max-response-len",
    "data.train_batch_size": "rollout-batch-size",
    "data.template_kwargs": "apply-chat-template-kwargs",
    "algorithm.adv_estimator": "advantage-estimator",
    "algorithm.gamma": "gamma",
    "algorithm.lam": "lambd",
    "algorithm.kl_coef": "kl-coef",
}
NAMED = {
    "colocated": "colocate",
    "rollout_gpus_per_node": "rollout-num-gpus",
    "save_freq": "save-interval",
    "test_freq": "eval-interval",
    "total_epochs": "num-epoch",
    "critic": "advantage-estimator",
    "actor.mini_batch_size": "global-batch-size",
    "critic.mini_batch_size": "global-batch-size",
    "actor.infer_max_tokens": "log-probs-max-tokens-per-gpu",
    "actor.model.gradient_checkpointing": "recompute-granularity",
    "actor.optim.name": "optimizer",
    "actor.optim.grad_clip": "clip-grad",
    "actor.optim.lr_warmup_steps": "lr-warmup-iters",
    "actor.optim.lr_warmup_steps_ratio": "lr-warmup-fraction",
    "actor.sharding.dtype": "fp16",
    "actor.sharding.tensor_parallel": "tensor-model-parallel-size",
    "actor.sharding.pipeline_parallel": "pipeline-model-parallel-size",
    "actor.sharding.context_parallel": "context-parallel-size",
    "actor.sharding.expert_parallel": "expert-model-parallel-size",
    "actor.sharding.cpu_optimizer_share": "optimizer-offload-fraction",
    "actor.sharding.param_offload": "offload-train",
    "actor.sharding.optimizer_offload": "offload-train",
    "actor.loss_agg_mode": "calculate-per-token-loss",
    "rollout.tensor_parallel": "rollout-num-gpus-per-engine",
    "rollout.pipeline_parallel": "sglang-pp-size",
    "rollout.data_parallel": "sglang-dp-size",
    "rollout.expert_parallel": "sglang-ep-size",
    "rollout.sleeps": "offload-rollout",
    "data.train_files": "prompt-data",
    "data.val_files": "eval-prompt-data",
    "algorithm.use_kl_in_reward": "kl-coef",
    "algorithm.norm_adv_by_std_in_grpo": "disable-grpo-std-normalization",
    "algorithm.rollout_is": "use-tis",
    "reward.endpoints": "rm-url",
}
# slime/backends/megatron_utils/loss.py: what each estimator computes, under the names of verl's registry.
_ESTIMATORS = {"grpo": "grpo", "gspo": "grpo", "cispo": "grpo", "ppo": "gae",
               "reinforce_plus_plus": "reinforce_plus_plus",
               "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline"}  # fmt: skip
LACKS = frozenset(("actor.infer_micro_batch_size", "data.filter_overlong_prompts"))
# One of these beside a program named train.py makes it slime's or its fork's.
_SIGNS = re.compile(
    r"--(?:hf-checkpoint|rollout-(?:batch-size|num-gpus|function-path)|actor-num-gpus-per-node"
    r"|n-samples-per-prompt|sglang-[\w-]+|prefill-num-servers|megatron-config-path)(?:=.*)?"
)
_OPTION = re.compile(r"--([A-Za-z][\w-]*)(?:=.*)?", re.DOTALL)


def is_family(words: Sequence[str]) -> bool:
    """Whether WORDS of a command that runs `train.py` are slime's or its fork's."""
    return any(_SIGNS.fullmatch(word) for word in words)


def num_unknown(name: str, words: Sequence[str]) -> int:
    """Options among WORDS that the newest release of the trainer NAME does not have."""
    keys = layout(name, versions(name)[0], "rl").keys
    options = [matched[1] for word in words if (matched := _OPTION.fullmatch(word)) is not None]
    return sum(option not in keys and option.removeprefix("no-") not in keys for option in options)


def _is_own(words: Sequence[str]) -> bool:
    """Whether WORDS are slime's, or its fork's in equal measure."""
    return is_family(words) and num_unknown("slime", words) <= num_unknown("miles", words)


def gpus(config: Config) -> int:
    """GPUs that train."""
    return config.pick.whole("actor-num-nodes", 1) * config.pick.whole("actor-num-gpus-per-node", 8)


def _datasets(config: Config, key: str) -> list[str]:
    """Files of a data option: `path@[slice]`, and for evaluation names and paths in turn."""
    words = config.pick.words_or_text(key, "")
    given = [words] if isinstance(words, str) else list(words)
    paths = given[1::2] if key == "eval-prompt-data" and len(given) > 1 else given
    return [re.sub(r"@\[.*\]$", "", path) for path in paths if path.startswith(("/", ".", "~"))]


def derive(config: Config) -> dict[str, Any]:
    """Fields that several options make, or that slime's source settles."""
    pick = config.pick
    estimator, together = pick.text("advantage-estimator", "grpo"), pick.flag("colocate")
    engines, url = pick.whole("rollout-num-gpus"), pick.text("rm-url")
    steps, epochs = pick.whole("num-rollout"), pick.whole("num-epoch")
    in_loss, coef = pick.flag("use-kl-loss"), pick.number("kl-coef", 0.0)
    one_node = pick.whole("actor-num-nodes", 1) == 1
    return {
        "device": "cuda",
        "colocated": together,
        "rollout_nodes": 0,
        "ray_address": "",
        "rollout_gpus_per_node": 0 if together else engines if engines is not None and one_node else UNKNOWN,
        "ref": in_loss or coef != 0,
        "critic": estimator == "ppo",
        "reward_model": False,
        "loggers": tuple(name for name in ("wandb", "tensorboard") if pick.flag(f"use-{name}")),
        "save_freq": pick.whole("save-interval") or -1,
        "test_freq": pick.whole("eval-interval") or -1,
        "val_before_train": not pick.flag("skip-eval-before-train"),
        "total_steps": steps,
        "total_epochs": epochs if epochs is not None and steps is None else UNKNOWN,
        "algorithm.adv_estimator": _ESTIMATORS.get(estimator, UNKNOWN),
        "algorithm.norm_adv_by_std_in_grpo": pick.flag("grpo_std_normalization", True),
        "algorithm.use_kl_in_reward": coef != 0,
        "algorithm.kl_ctrl_type": "fixed",
        "algorithm.rollout_is": "token" if pick.flag("use-tis") else None,
        "algorithm.bypass_mode": pick.flag("use-rollout-logprobs"),
        "data.train_files": tuple(_datasets(config, "prompt-data")),
        "data.val_files": tuple(_datasets(config, "eval-prompt-data")),
        "data.made": "",
        "reward.function_path": None,
        "reward.endpoints": (url,) if url is not None and url.startswith("http") else (),
        **_rollout(config, together),
        **_roles(config, together),
    }


def _rollout(config: Config, together: bool) -> dict[str, Any]:
    pick = config.pick
    per_engine, pipeline = pick.whole("rollout-num-gpus-per-engine", 1), pick.whole("sglang-pp-size", 1)
    sleeps = pick.raw("offload-rollout")
    temperature = pick.number("eval-temperature")
    return {
        "rollout.name": "sglang",
        "rollout.mode": "async",
        "rollout.dtype": "bfloat16" if pick.text("sglang-dtype", "auto") == "auto" else pick.text("sglang-dtype"),
        "rollout.memory_utilization": pick.number("sglang-mem-fraction-static") or UNKNOWN,
        "rollout.tensor_parallel": per_engine // pipeline if pipeline and per_engine % pipeline == 0 else UNKNOWN,
        "rollout.pipeline_parallel": pipeline,
        # Data parallelism of an engine's attention, on the GPUs that it has; none of whole engines.
        "rollout.data_parallel": 1,
        "rollout.expert_parallel": pick.whole("sglang-ep-size", 1),
        "rollout.sleeps": together if sleeps is None else bool(sleeps),
        "rollout.prefix_caching": not pick.flag("sglang-disable-radix-cache"),
        "rollout.max_seqs": pick.whole("sglang-max-running-requests") or UNKNOWN,
        "rollout.quantization": pick.text("sglang-quantization"),
        "rollout.val_temperature": temperature if temperature is not None else pick.number("rollout-temperature", 1.0),
        "rollout.multi_turn": UNKNOWN if pick.text("custom-generate-function-path") else False,
        "rollout.calculate_log_probs": pick.flag("use-tis") or pick.flag("use-rollout-logprobs"),
        "rollout.engine_kwargs": {},
    }  # fmt: skip


def _roles(config: Config, together: bool) -> dict[str, Any]:
    pick = config.pick
    n, batch = pick.whole("n-samples-per-prompt", 1), pick.whole("global-batch-size")
    per_rollout = pick.whole("num-steps-per-rollout")
    if per_rollout:
        batch = pick.whole("rollout-batch-size", 0) * n // per_rollout
    mini = batch // n if batch and n > 0 and batch % n == 0 else UNKNOWN
    tokens = pick.whole("max-tokens-per-gpu")
    infer_tokens = pick.whole("log-probs-max-tokens-per-gpu") or tokens or UNKNOWN
    warmup, share = pick.whole("lr-warmup-iters", 0), pick.number("lr-warmup-fraction")
    found: dict[str, Any] = {
        "actor.epochs": 1,
        "actor.max_tokens": tokens or UNKNOWN,
        "actor.infer_dynamic_batch": pick.flag("use-dynamic-batch-size"),
        "actor.infer_max_tokens": infer_tokens,
        "actor.model.gradient_checkpointing": pick.text("recompute-granularity") == "full",
        "actor.model.remove_padding": True,
        "actor.model.trust_remote_code": True,
        "actor.model.tokenizer_path": None,
        "actor.model.custom_chat_template": None,
        "actor.model.lora_rank": 0,
        "actor.model.liger": False,
        "actor.model.fused_kernels": False,
        "actor.optim.name": {"adam": "adamw"}.get(name := pick.text("optimizer", "adam"), name),
        # Megatron clips nothing at 0.
        "actor.optim.grad_clip": pick.number("clip-grad", 1.0) or None,
        "actor.optim.lr_warmup_steps": warmup or -1,
        "actor.optim.lr_warmup_steps_ratio": share or 0.0,
        "actor.clip_ratio_low": None,
        "actor.loss_mode": {"gspo": "gspo", "cispo": "cispo"}.get(pick.text("advantage-estimator", "grpo"), "vanilla"),
        "actor.loss_agg_mode": "token-mean" if pick.flag("calculate-per-token-loss") else "seq-mean-token-mean",
        "actor.mini_batch_size": mini,
        "critic.mini_batch_size": mini,
        "critic.dynamic_batch": pick.flag("use-dynamic-batch-size"),
        "critic.micro_batch_size": pick.whole("micro-batch-size", 1),
        "critic.max_tokens": tokens or UNKNOWN,
        "critic.optim.lr": pick.number("lr", 1e-6),
        "critic.model.gradient_checkpointing": pick.text("recompute-granularity") == "full",
        "ref.infer_dynamic_batch": pick.flag("use-dynamic-batch-size"),
        "ref.infer_max_tokens": infer_tokens,
        "ref.shares_actor": False,
    }
    chunk = config.pick.whole("log-probs-chunk-size", -1)
    for role in ("actor", "ref", "critic", "reward_model"):
        found |= {f"{role}.sharding.{name}": value for name, value in _sharding(config, together).items()}
        found |= {f"{role}.own_gpus": 0, f"{role}.chunked_logits": chunk > 0, f"{role}.model.fused_kernels": False}
        found[f"{role}.chunk_tokens"] = max(chunk, 1)
    return found


def _sharding(config: Config, together: bool) -> dict[str, Any]:
    pick = config.pick
    offloads = _offloads(config, together)
    half = "float16" if pick.flag("fp16") else "bfloat16"
    in_rest = pick.flag("optimizer-cpu-offload")
    return {
        "strategy": "megatron",
        "dtype": half,
        "model_dtype": half,
        "reduce_dtype": "float32" if pick.flag("accumulate-allreduce-grads-in-fp32") else half,
        "tensor_parallel": pick.whole("tensor-model-parallel-size", 1),
        "pipeline_parallel": pick.whole("pipeline-model-parallel-size", 1),
        "context_parallel": pick.whole("context-parallel-size", 1),
        "expert_parallel": pick.whole("expert-model-parallel-size", 1),
        "sequence_parallel": 1,
        "offload_policy": False,
        "param_offload": offloads,
        "grad_offload": offloads,
        "optimizer_offload": offloads,
        "cpu_optimizer_share": pick.number("optimizer-offload-fraction", 1.0) if in_rest else 0.0,
    }


def _offloads(config: Config, together: bool) -> bool:
    """Whether training gives its memory back while engines generate (`slime_validate_args`)."""
    said = config.pick.raw("offload-train")
    if config.pick.text("advantage-estimator", "grpo") == "ppo" or config.pick.flag("offload"):
        return True
    return together if said is None else bool(said)


def refused(config: Config, spec: RunSpec) -> Iterator[Refusal]:
    """What `slime_validate_args`, Megatron's own and SGLang's stop at."""
    del spec
    yield from _batches(config)
    yield from _placement(config)
    yield from _pairs(config)


def _batches(config: Config) -> Iterator[Refusal]:
    pick = config.pick
    n, prompts = pick.whole("n-samples-per-prompt", 1), pick.whole("rollout-batch-size", 0)
    batch, per_rollout = pick.whole("global-batch-size"), pick.whole("num-steps-per-rollout")
    if per_rollout and batch is not None and batch != prompts * n // per_rollout:
        yield Refusal("global-batch-size", f"expected rollout-batch-size × n-samples-per-prompt / "
                      f"num-steps-per-rollout = {prompts * n // per_rollout}, got {batch}")  # fmt: skip
    elif not per_rollout and batch and prompts and prompts * n < batch:
        yield Refusal("global-batch-size", f"expected at most the {prompts * n} samples of a rollout, got {batch}")
    more = pick.whole("over-sampling-batch-size")
    if more is not None and more < prompts:
        yield Refusal("over-sampling-batch-size", f"expected at least rollout-batch-size = {prompts}, got {more}")
    if pick.flag("use-dynamic-batch-size") and pick.whole("max-tokens-per-gpu") is None:
        yield Refusal("use-dynamic-batch-size", "expected max-tokens-per-gpu beside it, got none", lacks=True)
    context, prompt = pick.whole("rollout-max-context-len"), pick.whole("rollout-max-prompt-len")
    if context is not None and prompt is not None and prompt > context - 1:
        yield Refusal("rollout-max-prompt-len", f"expected less than rollout-max-context-len = {context}, got {prompt}")
    if (heat := pick.number("rollout-temperature", 1.0)) <= 0:
        yield Refusal("rollout-temperature", f"expected more than 0, got {heat:g}")


def _placement(config: Config) -> Iterator[Refusal]:
    pick = config.pick
    shards = [pick.whole(f"{name}-parallel-size", 1) for name in ("tensor-model", "pipeline-model", "context")]
    split = shards[0] * shards[1] * shards[2]
    if min(shards) >= 1 and gpus(config) % split:
        key = next(name for name, size in zip(
            ("tensor-model", "pipeline-model", "context"), shards, strict=True) if size > 1)  # fmt: skip
        yield Refusal(f"{key}-parallel-size", f"expected tensor × pipeline × context to divide the {gpus(config)} GPUs "
                      f"that train, got {' × '.join(map(str, shards))}")  # fmt: skip
    per_engine, pipeline = pick.whole("rollout-num-gpus-per-engine", 1), pick.whole("sglang-pp-size", 1)
    if pipeline > 1 and per_engine % pipeline:
        yield Refusal("rollout-num-gpus-per-engine", f"expected a multiple of sglang-pp-size = {pipeline}, got "
                      f"{per_engine}")  # fmt: skip
    if pick.whole("sglang-dp-size", 1) > 1 and not pick.flag("sglang-enable-dp-attention"):
        yield Refusal("sglang-dp-size", "expected sglang-enable-dp-attention beside it, got none", lacks=True)
    if config.kind.startswith("async") and pick.flag("colocate"):
        yield Refusal("colocate", "expected engines on GPUs of their own with train_async.py, got both on the same")
    if pick.flag("sequence-parallel") and shards[0] == 1 and "sequence-parallel" not in config.given:
        return
    if pick.text("update-weight-mode", "full") == "delta" and pick.flag("colocate"):
        yield Refusal("update-weight-mode", "expected full with colocate, got delta")
    if pick.text("update-weight-transport", "nccl") == "disk" and not pick.text("update-weight-disk-dir"):
        yield Refusal("update-weight-transport", "expected update-weight-disk-dir beside disk, got none", lacks=True)


def _pairs(config: Config) -> Iterator[Refusal]:
    """Options that need another, or exclude it."""
    pick = config.pick
    if pick.whole("eval-interval") is not None and not (pick.raw("eval-prompt-data") or pick.text("eval-config")):
        yield Refusal("eval-interval", "expected eval-prompt-data or eval-config beside it, got neither", lacks=True)
    if pick.whole("save-interval") is not None and pick.text("save") is None:
        yield Refusal("save-interval", "expected save beside it, got none", lacks=True)
    if pick.number("kl-coef", 0.0) != 0 and pick.number("kl-loss-coef", 0.0) != 0:
        yield Refusal("kl-loss-coef", "expected kl-coef or kl-loss-coef, got both")
    estimator = pick.text("advantage-estimator", "grpo")
    if estimator.startswith("reinforce_plus_plus") and not pick.flag("normalize-advantages"):
        yield Refusal("advantage-estimator", f"expected normalize-advantages beside {estimator}, got none", lacks=True)
    if pick.flag("use-rollout-logprobs") and pick.flag("use-tis"):
        yield Refusal("use-tis", "expected use-tis or use-rollout-logprobs, got both")
    if pick.flag("get-mismatch-metrics") and not pick.text("custom-tis-function-path"):
        yield Refusal("get-mismatch-metrics", "expected custom-tis-function-path beside it, got none", lacks=True)
    if pick.whole("num-rollout") is None and pick.whole("num-epoch") is None:
        yield Refusal("num-rollout", "expected num-rollout or num-epoch, got neither", lacks=True)
    if pick.flag("enable-mtp-training") and not pick.whole("mtp-num-layers"):
        yield Refusal("enable-mtp-training", "expected mtp-num-layers beside it, got none", lacks=True)
    teacher, kind = pick.text("opd-teacher-load"), pick.text("opd-type")
    if pick.flag("use-opd") and kind is None:
        yield Refusal("use-opd", "expected opd-type beside it, got none", lacks=True)
    elif kind == "megatron" and pick.flag("use-opd") and teacher is None:
        yield Refusal("opd-type", "expected opd-teacher-load beside megatron, got none", lacks=True)
    elif teacher is not None and (kind == "sglang" or not pick.flag("use-opd")):
        yield Refusal("opd-teacher-load", "expected use-opd with opd-type megatron beside it, got another")
    if pick.raw("only-train-params-name-list") and pick.raw("freeze-params-name-list"):
        yield Refusal("freeze-params-name-list", "expected this or only-train-params-name-list, got both")


COMMAND = re.compile(r"(?:.*/)?train(?:_(?P<kind>async))?\.py")
TRAINER = Trainer(
    name="slime",
    title="slime",
    command=COMMAND,
    signs=("train.py", "train_async.py"),
    owns=_is_own,
    kind="rl",
    fields=FIELDS,
    named=NAMED,
    derive=derive,
    lacks=LACKS,
    refused=refused,
    asserts=frozenset(("CFG018",)),
    abbreviates=False,
    ignores=True,
)
