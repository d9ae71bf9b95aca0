"""A run with other settings, and its prediction with what the engine's cache holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import Limits, MemoryProfile, Owner, Phase
from rlcheck.measure.memory.predict import Gpu, plan_of, predict


def with_settings(run: ConfigFacts, settings: Mapping[str, Any]) -> ConfigFacts:
    """The run with other values at dotted paths of its spec; what was read from files stays as it is."""
    spec: Any = run.spec
    for path, value in settings.items():
        spec = _with(spec, path.split("."), value)
    return msgspec.structs.replace(run, spec=spec)


def _with(struct: Any, path: list[str], value: Any) -> Any:
    inner = value if len(path) == 1 else _with(getattr(struct, path[0]), path[1:], value)
    return msgspec.structs.replace(struct, **{path[0]: inner})


def settled(memory: MemoryProfile) -> MemoryProfile:
    """MEMORY with the allocator's slack as far as there is room for it: it is given back before anything runs out."""
    return msgspec.structs.replace(
        memory, phases=tuple(_settled(phase, memory.usable_bytes) for phase in memory.phases)
    )


def _settled(phase: Phase, usable_bytes: int) -> Phase:
    room = max(usable_bytes - phase.needed_bytes, 0)
    owners = [owner for owner in phase.owners if owner.kind != "slack"]
    slack = min(phase.num_bytes - phase.needed_bytes, room)
    return msgspec.structs.replace(phase, owners=(*owners, *([Owner(kind="slack", num_bytes=slack)] if slack else [])))


def predicted(run: ConfigFacts, gpu: Gpu, host_bytes: int) -> MemoryProfile:
    """The prediction; its limits say what the cache of one engine holds, -1 where the engine has none of its own.

    Raises:
        UnknownModelError: the actor's sizes are not known.
    """
    now = settled(predict(run, gpu, host_bytes))
    engine, spec = plan_of(run, gpu).engine, run.spec
    if not engine.wanted_bytes or not engine.kv_bytes_per_token:
        return now
    asked = max(spec.data.max_prompt_length + spec.data.max_response_length, 1)
    longest = spec.rollout.max_model_len or asked
    # The engine starts only if one sequence of its own greatest length would fit, whatever the run asks for.
    many = engine.kv_tokens // min(asked, longest) if engine.kv_tokens >= longest else 0
    cache = Limits(kv_tokens=engine.kv_tokens, concurrent_sequences=many)
    return msgspec.structs.replace(now, limits=cache)
