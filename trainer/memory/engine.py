"""The rollout engine of a measurement: `python -m trainer.memory.engine`, one JSON request on standard input.

Starts the engine as a run does, generates with it, lets it sleep and wakes it, and says what the device held.
"""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from typing import Any

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.facts.memory import MeasuredPhase
from rlcheck.facts.run import RunSpec
from trainer.errors import RunFailure, UserError, kind_and_line
from trainer.memory.as_config import config_of
from trainer.rollout.protocol import Request, Sampling

_SAMPLE_S = 0.02


class EngineRequest(Struct, frozen=True):
    """What the engine is asked: generate for NUM_SEQUENCES prompts, MAX_TOKENS each."""

    spec: RunSpec
    directories: dict[str, str]
    world_size: int
    num_sequences: int
    max_tokens: int


class _Watch:
    """The most that the device held since last asked, sampled."""

    def __init__(self) -> None:
        self._most = 0
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            self._most = max(self._most, _used())
            time.sleep(_SAMPLE_S)

    def take(self) -> int:
        """Bytes at the worst moment, and begin anew."""
        most, self._most = max(self._most, _used()), 0
        return most


def _used() -> int:
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return total - free


def measure(request: EngineRequest) -> dict[str, Any]:
    """Phases of the engine on its first GPU, and what its KV cache holds."""
    from trainer.rollout.vllm.engine import VllmEngine

    spec = request.spec
    config = config_of(spec, request.directories, request.world_size)
    engine = VllmEngine(config, request.directories["actor"])
    found: list[MeasuredPhase] = []
    begun = time.perf_counter()
    facts = engine.start()
    watch = _Watch()
    stages = {"engine start": time.perf_counter() - begun}
    vocab, length = 1000, max(spec.data.max_prompt_length, 1)
    prompts = [Request(tuple((row + n) % vocab for n in range(length)), row) for row in range(request.num_sequences)]
    sampling = Sampling(1.0, 1.0, -1, 0, request.max_tokens, (), (), True)
    watch.take()
    begun = time.perf_counter()
    engine.generate(prompts, sampling)
    stages["generation"] = time.perf_counter() - begun
    found.append(MeasuredPhase(name="rollout", peak_bytes=watch.take()))
    if engine.sleep():
        time.sleep(0.2)
        watch.take()
        found.append(MeasuredPhase(name="asleep", peak_bytes=watch.take()))
        engine.wake("weights")
        found.append(MeasuredPhase(name="weights awake", peak_bytes=watch.take()))
    answer = {
        "phases": msgspec.to_builtins(found),
        "kv": _kv(engine),
        "seconds": stages,
        "facts": facts,
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    engine.stop()
    return answer


def _kv(engine: Any) -> dict[str, int]:
    """Blocks of the KV cache, and tokens of a block."""
    cache = engine._llm.llm_engine.vllm_config.cache_config
    return {"num_blocks": int(cache.num_gpu_blocks or 0), "block_size": int(cache.block_size or 0)}


def main() -> None:
    """Answer the request on standard input with one JSON line on the descriptor that the environment names."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineRequest)
    answer: dict[str, Any]
    try:
        answer = measure(request)
    except (UserError, RunFailure) as error:
        answer = {"error": str(error)}
    except Exception as error:  # the engine's own, of whatever kind: its first line is the answer
        answer = {"error": kind_and_line(error)}
    with os.fdopen(int(os.environ["RLTRAIN_ANSWER_FD"]), "wb") as out:
        out.write(msgspec.json.encode(answer, enc_hook=str) + b"\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
