"""The rollout engine of another framework's config, as rltrain would start it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rlcheck.facts.config import ConfigFacts, RolloutSpec, RunSpec
from rltrain.config import RunConfig, resolve
from rltrain.config.engines import ENGINES
from rltrain.config.machine import this_machine
from rltrain.config.paths import model_directory
from rltrain.core.errors import UserError


def config_of(run: Mapping[str, Any]) -> RunConfig:
    """Model, engine, lengths and sampling of RUN (a `ConfigFacts` as plain data) in a config of rltrain's, resolved.

    Raises:
        UserError: RUN uses an engine that rltrain does not drive, or names no model that is here.
    """
    facts = msgspec.convert(run, ConfigFacts)
    spec, use = facts.spec, facts.spec.actor.model
    if spec.rollout.name not in ENGINES:
        raise UserError(
            f"the rollout engine of this config is {spec.rollout.name}: only {' and '.join(ENGINES)} can be started "
            f"here; start a {spec.rollout.name} server and give its URL: rlcheck rollout http://HOST:PORT"
        )
    if use.path is None:
        raise UserError("the config names no model; give actor_rollout_ref.model.path=DIR")
    found = facts.models.get("actor")
    place = found.value.path if found is not None and found.value is not None and found.value.path else use.path
    machine = this_machine()
    tree: dict[str, Any] = {
        "actor_rollout_ref": {
            "model": {
                "path": model_directory(place),
                "tokenizer_path": use.tokenizer_path,
                "trust_remote_code": use.trust_remote_code,
                "override_config": use.override,
                "custom_chat_template": use.custom_chat_template,
            },
            "rollout": _rollout(spec),
        },
        "data": {
            "max_prompt_length": spec.data.max_prompt_length,
            "max_response_length": spec.data.max_response_length,
            "apply_chat_template_kwargs": spec.data.template_kwargs,
        },
        "trainer": {"device": machine.device, "n_gpus_per_node": max(machine.num_gpus, 1)},
    }
    return resolve(RunConfig.model_validate(tree), machine)


def _rollout(spec: RunSpec) -> dict[str, Any]:
    rollout = spec.rollout
    own: Any = rollout.engine_kwargs.get(rollout.name, rollout.engine_kwargs)
    return {
        **engine_section(rollout),
        "name": rollout.name,
        "temperature": rollout.temperature or 1.0,
        "top_p": rollout.top_p,
        "top_k": max(rollout.top_k, -1),
        # Configs write null for what the engine is to choose.
        "engine_kwargs": {rollout.name: {n: v for n, v in own.items() if v is not None and not isinstance(v, dict)}},
    }


def engine_section(rollout: RolloutSpec) -> dict[str, Any]:
    """Size, parallelism and memory of ROLLOUT's engines under rltrain's keys; null: the default."""
    return {
        "n": rollout.n,
        "dtype": rollout.dtype,
        "gpu_memory_utilization": rollout.memory_utilization,
        "enforce_eager": rollout.enforce_eager,
        "free_cache_engine": rollout.sleeps,
        "tensor_model_parallel_size": rollout.tensor_parallel,
        "max_num_batched_tokens": rollout.max_batched_tokens,
        "max_num_seqs": rollout.max_seqs,
        "max_model_len": rollout.max_model_len,
        "enable_chunked_prefill": rollout.chunked_prefill,
        "enable_prefix_caching": rollout.prefix_caching,
    }
