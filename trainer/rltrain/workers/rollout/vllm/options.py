"""The arguments of `vllm.LLM`, from the config. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError

KEY = "actor_rollout_ref.rollout.engine_kwargs.vllm"
EXTENSION = "rltrain.workers.rollout.vllm.extension.SyncExtension"


def base(config: RunConfig, model_dir: str, saved_weights: bool = False) -> dict[str, Any]:
    """What every build gets."""
    parts = config.actor_rollout_ref
    rollout, model = parts.rollout, parts.model
    size = rollout.tensor_model_parallel_size
    assert rollout.max_model_len is not None
    return {
        "model": model_dir,
        "tokenizer": model.tokenizer_path or model_dir,
        "trust_remote_code": model.trust_remote_code,
        "hf_overrides": dict(model.override_config),
        "dtype": rollout.dtype,
        "seed": config.trainer.seed,
        "tensor_parallel_size": size,
        # Named, because vLLM would take Ray by itself inside a Ray actor.
        "distributed_executor_backend": "mp" if size > 1 else "uni",
        "max_model_len": rollout.max_model_len,
        "max_num_seqs": rollout.max_num_seqs,
        # More than all sequences at full length could never run together.
        "max_num_batched_tokens": min(rollout.max_num_batched_tokens, rollout.max_num_seqs * rollout.max_model_len),
        "enable_prefix_caching": rollout.enable_prefix_caching,
        "enable_chunked_prefill": rollout.enable_chunked_prefill,
        # In a run, weights come from the actor before the first generation.
        "load_format": "auto" if saved_weights else "dummy",
        # Of the distribution that tokens are drawn from, temperature included.
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": True,
    }


RESERVED = frozenset(
    {"model", "tokenizer", "dtype", "tensor_parallel_size", "max_model_len", "distributed_executor_backend"}
    | {"load_format", "logprobs_mode", "worker_extension_cls", "worker_cls", "enable_sleep_mode"}
)
"""Arguments that rltrain relies on."""


def with_user(arguments: Mapping[str, Any], extra: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """ARGUMENTS with the user's EXTRA in their place.

    Args:
        arguments: rltrain's.
        extra: `engine_kwargs.vllm`.
        known: names that this vLLM knows.

    Raises:
        UserError: a name that vLLM does not know, or one that rltrain sets.
    """
    for name in extra:
        if name in RESERVED:
            raise UserError(f"{KEY}.{name}: rltrain sets this itself; use its own key, or leave it out")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise UserError(f"{KEY}.{name}: vLLM has no such argument" + (f"; did you mean {near[0]}?" if near else ""))
    return {**arguments, **extra}
