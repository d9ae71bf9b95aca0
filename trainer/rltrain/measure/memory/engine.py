"""The rollout engine of a measurement: `python -m rltrain.measure.memory.engine`, one JSON request on standard input.

Starts the engine as a run does, generates with it, lets it sleep and wakes it, and says what the device held.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.facts.config import RunSpec
from rlcheck.facts.memory import MeasuredPhase
from rltrain.cluster.gpu_memory import GpuMemory
from rltrain.core import nvml
from rltrain.measure.memory.as_config import config_of
from rltrain.measure.memory.child import answer
from rltrain.workers.rollout.protocol import Request, Sampling, Syncs
from rltrain.workers.rollout.stream import generate
from rltrain.workers.rollout.worker import make_engine

_SAMPLE_S = 0.02


class EngineRequest(Struct, frozen=True):
    """What the engine is asked: generate for NUM_SEQUENCES prompts, MAX_TOKENS each."""

    spec: RunSpec
    directories: dict[str, str]
    world_size: int
    num_sequences: int
    max_tokens: int


def measure(request: EngineRequest) -> dict[str, Any]:
    """Phases of the engine on its first GPU, and what its KV cache holds."""
    spec = request.spec
    config = config_of(spec, request.directories, request.world_size)
    engine = make_engine(config)
    found: list[MeasuredPhase] = []
    begun = time.perf_counter()
    facts = engine.start()
    watch = GpuMemory(nvml.visible()[:1], _SAMPLE_S)
    stages = {"engine start": time.perf_counter() - begun}
    vocab, length = 1000, max(spec.data.max_prompt_length, 1)
    prompts = [Request(tuple((row + n) % vocab for n in range(length)), row) for row in range(request.num_sequences)]
    sampling = Sampling(1.0, 1.0, -1, 0, request.max_tokens, (), (), True)
    watch.take()
    begun = time.perf_counter()
    generate(engine, prompts, sampling, config.actor_rollout_ref.rollout.max_retries)
    stages["generation"] = time.perf_counter() - begun
    found.append(MeasuredPhase(name="rollout", peak_bytes=watch.take()))
    if isinstance(engine, Syncs) and engine.sleep():
        time.sleep(0.2)
        watch.take()
        found.append(MeasuredPhase(name="asleep", peak_bytes=watch.take()))
        engine.wake("weights")
        found.append(MeasuredPhase(name="weights awake", peak_bytes=watch.take()))
    engine.stop()
    return {"phases": msgspec.to_builtins(found), "kv": facts.get("kv", {}), "seconds": stages, "facts": facts}


if __name__ == "__main__":
    answer(EngineRequest, measure)
