"""The largest settings that fit, all else as it is: bisection over the prediction, which costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import Limits, MemoryProfile, Phase
from rlcheck.measure.memory.predict import Gpu
from rlcheck.measure.memory.summary import AWAKE, held_by
from rlcheck.measure.memory.whatif import predicted, with_settings

_TOKENS = 256
"""Limits of tokens are multiples of this: nobody sets them finer."""
_MOST_SHARE = 97
"""Percent of the GPU that an engine can be given at most: its context and the driver hold the rest."""

_Concerns = Callable[[Phase], bool]


def limits(run: ConfigFacts, gpu: Gpu, host_bytes: int) -> Limits:
    """The limits of the run on this GPU.

    A limit looks at the phases that its setting changes: what is too large in another phase is said elsewhere.
    """
    now = predicted(run, gpu, host_bytes)

    def fits(concerns: _Concerns, **settings: Any) -> bool:
        paths = {path.replace("__", "."): value for path, value in settings.items()}
        return _fits(predicted(with_settings(run, paths), gpu, host_bytes), concerns)

    spec = run.spec
    longest = spec.data.max_prompt_length + spec.data.max_response_length
    samples = _samples(run)
    micro = tokens = share = -1
    if spec.actor.trained and any(_of_actor(phase) for phase in now.phases):
        micro = largest(lambda n: fits(_of_actor, actor__dynamic_batch=False, actor__micro_batch_size=n), 1, samples)
        least, most = -(-longest // _TOKENS), max(1, samples * longest // _TOKENS)
        tokens = _TOKENS * largest(
            lambda n: fits(_of_actor, actor__dynamic_batch=True, actor__max_tokens=n * _TOKENS), least, max(least, most)
        )
    if now.limits.kv_tokens >= 0:
        share = largest_share(run, gpu, host_bytes)
    return msgspec.structs.replace(now.limits, micro_batch_size=micro, max_tokens=tokens, memory_utilization=share)


def largest_share(run: ConfigFacts, gpu: Gpu, host_bytes: int, left: float = 0.0) -> float:
    """The engine's largest share of the GPU with LEFT of the usable memory (0 to 1) free while it is awake; 0: none."""
    concerned = _awake if run.spec.rollout.sleeps else _of_engine

    def fits(percent: int) -> bool:
        then = predicted(with_settings(run, {"rollout.memory_utilization": percent / 100}), gpu, host_bytes)
        most = (1 - left) * then.usable_bytes
        return all(phase.needed_bytes <= most for phase in then.phases if concerned(phase))

    return largest(fits, 1, _MOST_SHARE) / 100


def largest(fits: Callable[[int], bool], least: int, most: int) -> int:
    """The largest number from `least` to `most` for which `fits` is true, if it is true up to some number; else 0."""
    if not fits(least):
        return 0
    if fits(most):
        return most
    low, high = least, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _fits(memory: MemoryProfile, concerns: _Concerns) -> bool:
    return all(phase.needed_bytes <= memory.usable_bytes for phase in memory.phases if concerns(phase))


def _of_actor(phase: Phase) -> bool:
    return phase.name in ("actor update", "actor step")


def _awake(phase: Phase) -> bool:
    return phase.name in AWAKE


def _of_engine(phase: Phase) -> bool:
    return held_by(phase, "rollout") > 0


def _samples(run: ConfigFacts) -> int:
    """Samples of a mini batch that one group of GPUs works on: more than these a pass never sees."""
    spec = run.spec
    mini = spec.actor.mini_batch_size or spec.data.train_batch_size
    groups = max(1, spec.nodes * spec.gpus_per_node // max(1, spec.actor.sharding.sequence_parallel))
    return max(1, mini * spec.rollout.n // groups)
