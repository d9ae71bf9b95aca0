"""What TRL's `GRPOConfig` means in the keys that the reference reads (trl/trainer/grpo_config.py, 1.14 to 1.16)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
"""transformers' `Trainer.get_decay_parameter_names`."""
DEFAULTS: Mapping[str, Any] = {
    "loss_type": "dapo", "scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize",
    "importance_sampling_level": "token", "beta": 0.0, "epsilon": 0.2, "epsilon_high": None, "delta": None,
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "num_generations": 8, "num_iterations": 1, "reward_weights": None,
    "max_completion_length": 256, "gradient_accumulation_steps": 1, "steps_per_generation": 1, "entropy_coef": 0.0,
    "per_device_train_batch_size": 8, "generation_batch_size": 8, "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05, "use_bias_correction_kl": False, "max_grad_norm": 1.0, "learning_rate": 1e-6,
    "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.0, "warmup_steps": 0,
    "lr_scheduler_type": "linear", "optim": "adamw_torch_fused",
}  # fmt: skip


def mapped(config: Mapping[str, Any]) -> dict[str, Any]:
    """CONFIG, `{"trl": GRPOConfig, "chat_template": …}`, with the reference's sections beside it."""
    given: Mapping[str, Any] = config.get("trl") or {}
    args = {**DEFAULTS, **given}
    compute = "bfloat16" if args.get("bf16") else "float16" if args.get("fp16") else "float32"
    optim = {
        "lr": args["learning_rate"], "betas": [args["adam_beta1"], args["adam_beta2"]], "eps": args["adam_epsilon"],
        "weight_decay": args["weight_decay"],
    }  # fmt: skip
    actor = {
        "use_kl_loss": bool(args["beta"]), "kl_loss_coef": args["beta"], "entropy_coeff": args["entropy_coef"],
        "grad_clip": args["max_grad_norm"] or None, "optim": optim, "shuffle": True,
        "fsdp_config": {"dtype": compute, "model_dtype": "float32"},
    }  # fmt: skip
    rollout = {
        "n": args["num_generations"], "temperature": args["temperature"], "top_p": args["top_p"],
        "top_k": args["top_k"], "dtype": compute, "min_tokens": 0,
    }  # fmt: skip
    return {
        "trl": args,
        "data": {
            "max_response_length": args["max_completion_length"], "max_prompt_length": 1 << 40, "truncation": "error",
            "apply_chat_template_kwargs": args.get("chat_template_kwargs"),
        },
        "actor_rollout_ref": {
            "model": {"custom_chat_template": config.get("chat_template")}, "rollout": rollout, "actor": actor,
            "ref": {"fsdp_config": {"dtype": compute}},
        },
        "trainer": {"balance_batch": False},
    }  # fmt: skip


def decays(name: str) -> bool:
    """Whether transformers' trainer applies weight decay to a parameter."""
    return _NO_DECAY.search(name) is None


def learning_rate(args: Mapping[str, Any], step: int, total: int) -> float | None:
    """Of optimizer step STEP from 0 (transformers/optimization.py); None for a schedule that is not known here."""
    peak, given = float(args["learning_rate"]), float(args["warmup_steps"] or 0)
    if not given and args.get("warmup_ratio"):
        given = min(float(args["warmup_ratio"]), 0.999999)
    warm = int(given) if given >= 1 else math.ceil(total * given)
    kind = str(args["lr_scheduler_type"]).rpartition(".")[2].lower()
    if kind == "constant":
        return peak
    if kind not in ("linear", "cosine", "constant_with_warmup") or args.get("lr_scheduler_kwargs"):
        return None
    if step < warm:
        return peak * step / max(warm, 1)
    along = (step - warm) / max(total - warm, 1)
    shapes = {"linear": 1 - along, "cosine": (1 + math.cos(math.pi * along)) / 2, "constant_with_warmup": 1.0}
    return peak * max(shapes[kind], 0.0)
