"""The command line of SGLang's server, from the config. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError

KEY = "actor_rollout_ref.rollout.engine_kwargs.sglang"
SPARE_TOKENS = 8
"""SGLang keeps some of its context length for itself."""


def base(config: RunConfig, model_dir: str, saved_weights: bool, sleeps: bool) -> dict[str, Any]:
    """What every server gets."""
    parts = config.actor_rollout_ref
    rollout, model = parts.rollout, parts.model
    assert rollout.max_model_len is not None
    # Without a tokenizer no text is made of the answers; SGLang wants one to find stop strings and to ban ends.
    needs_tokenizer = bool(rollout.stop) or rollout.min_tokens > 0
    return {
        "model_path": model_dir,
        "tokenizer_path": model.tokenizer_path or model_dir,
        "trust_remote_code": model.trust_remote_code,
        "json_model_override_args": json.dumps(dict(model.override_config)),
        "dtype": rollout.dtype,
        "random_seed": config.trainer.seed,
        "tp_size": rollout.tensor_model_parallel_size,
        "context_length": rollout.max_model_len + SPARE_TOKENS,
        "max_running_requests": rollout.max_num_seqs,
        "chunked_prefill_size": rollout.max_num_batched_tokens if rollout.enable_chunked_prefill else -1,
        "disable_radix_cache": not rollout.enable_prefix_caching,
        # In a run, weights come from the actor before the first generation.
        "load_format": "auto" if saved_weights else "dummy",
        "mem_fraction_static": rollout.gpu_memory_utilization,
        "disable_cuda_graph": rollout.enforce_eager,
        "cuda_graph_max_bs": rollout.max_num_seqs,
        # Graphs of pieces of a prompt fail to start with 0.5.12 and torch 2.11.
        "disable_piecewise_cuda_graph": True,
        "enable_memory_saver": sleeps,
        # The one that draws by the seeds of requests.
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "skip_tokenizer_init": not needs_tokenizer,
        "skip_server_warmup": True,
        "log_level": "warning",
        "host": "127.0.0.1",
    }


RESERVED = frozenset(
    {"model_path", "tokenizer_path", "dtype", "tp_size", "context_length", "load_format", "sampling_backend"}
    | {"enable_memory_saver", "host", "port", "dp_size", "pp_size", "nnodes", "api_key", "admin_api_key"}
)
"""Arguments that rltrain relies on."""


def with_user(arguments: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """ARGUMENTS with the user's EXTRA in their place.

    Raises:
        UserError: one that rltrain sets.
    """
    for name in extra:
        if name in RESERVED:
            raise UserError(f"{KEY}.{name}: rltrain sets this itself; use its own key, or leave it out")
    return {**arguments, **extra}


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """As words: a flag for true, nothing for false and null, JSON for a mapping."""
    words: list[str] = []
    for name, value in arguments.items():
        option = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, list | tuple):
            words += [option, *map(str, value)]  # pyright: ignore[reportUnknownArgumentType]
        else:
            words += [option, json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return words
