"""What rollout engines are like: one row for each that a framework's config may name."""

from __future__ import annotations

import msgspec

from rlcheck.measure.config.rltrain_data import engines
from rlcheck.measure.config.trainers import titled, trainer_of


class Traits(msgspec.Struct, frozen=True):
    """A rollout engine as checks and the memory model see it.

    has_kv_cache: as large as `gpu_memory_utilization` says, and planned for `max_model_len`.
    limits_length: it refuses a `max_model_len` beyond the model's positions.
    wants_whole_prefill: without chunked prefill, `max_num_batched_tokens` must hold the longest sequence.
    wants_token_each: it refuses `max_num_batched_tokens` below `max_num_seqs`.
    has_lora_ranks: it takes LoRA of a short list of ranks.
    sleeps_in_pool: it sleeps in a memory pool, which excludes expandable segments.
    splits_experts: it has sizes of its own for the parallelism of experts.
    """

    has_kv_cache: bool = True
    limits_length: bool = False
    wants_whole_prefill: bool = False
    wants_token_each: bool = False
    has_lora_ranks: bool = False
    sleeps_in_pool: bool = False
    splits_experts: bool = False


VERL = {
    "vllm": Traits(limits_length=True, wants_whole_prefill=True, wants_token_each=True, has_lora_ranks=True,
                   sleeps_in_pool=True),
    "sglang": Traits(),
    "trtllm": Traits(splits_experts=True),
}  # fmt: skip
"""verl's registry, verl/workers/rollout/base.py and replica.py. TRL and OpenRLHF generate with vLLM alone."""


def names(framework: str) -> tuple[str, ...]:
    """Return the engines that a config of FRAMEWORK may name; for a plain file of fields, all of them."""
    return tuple({"verl": VERL, "rltrain": engines()}.get(framework, {**VERL, **engines()}))


def traits(name: str) -> Traits | None:
    """Return what engine `name` is like; None for one that nobody knows."""
    own = engines().get(name)
    return VERL.get(name) or (None if own is None else Traits(has_kv_cache=own.has_kv_cache))


def traits_of(name: str) -> Traits:
    """Return what engine `name` is like; one that nobody knows is held to no rule."""
    return traits(name) or Traits(has_kv_cache=False)


def not_startable(name: str, framework: str = "") -> str:
    """Return why the doctor cannot start engine `name` of a config of FRAMEWORK, in one line; "" if it can."""
    known = engines()
    if trainer_of(framework) is not None:
        return f"engines of {titled(framework)}'s configs cannot be started by the doctor; name a running server's URL"
    if name in known:
        return ""
    return f"the engine of this config is {name}; only {' and '.join(known)} can be started by the doctor"


def resident_bytes(name: str) -> int:
    """Return what the process of engine `name` takes on a CPU with a model of no size; unknown ones as the smallest."""
    known = engines()
    return known[name].resident_bytes if name in known else min(row.resident_bytes for row in known.values())
