"""The rollout engine of another framework's config, as rltrain would start it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from rlcheck.facts.run import RunFacts, RunSpec
from trainer.config import RunConfig, resolve
from trainer.config.paths import model_directory
from trainer.errors import UserError
from trainer.machine import this_machine


def config_of(run: Mapping[str, Any]) -> RunConfig:
    """Model, engine, lengths and sampling of RUN (a `RunFacts` as plain data) in a config of rltrain's, resolved.

    Raises:
        UserError: RUN uses an engine that rltrain does not drive, or names no model that is here.
    """
    facts = msgspec.convert(run, RunFacts)
    spec, use = facts.spec, facts.spec.actor.model
    if spec.rollout.name not in ("vllm", "hf"):
        raise UserError(
            f"the rollout engine of this config is {spec.rollout.name}: only vllm and hf can be started here; start "
            f"a {spec.rollout.name} server and give its URL: rlcheck rollout http://HOST:PORT"
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
    own: Any = rollout.engine_kwargs.get("vllm", rollout.engine_kwargs)
    return {
        "name": rollout.name,
        "n": rollout.n,
        "temperature": rollout.temperature or 1.0,
        "top_p": rollout.top_p,
        "top_k": max(rollout.top_k, -1),
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
        "engine_kwargs": {"vllm": _set(cast("dict[str, Any]", own))},
    }


def _set(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are set: configs write null for those that the engine is to choose."""
    return {name: value for name, value in arguments.items() if value is not None and not isinstance(value, dict)}
