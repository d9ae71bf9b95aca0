"""What gives the engine's KV cache room for enough sequences, and leaves training what it needs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import Change, MemoryProfile
from rlcheck.measure.config import fields
from rlcheck.measure.memory.advice import applied, change
from rlcheck.measure.memory.ladders import Step, for_cache
from rlcheck.measure.memory.limits import largest_share
from rlcheck.measure.memory.predict import Gpu
from rlcheck.measure.memory.summary import FEW_SEQUENCES, TIGHT, wanted_sequences
from rlcheck.measure.memory.whatif import predicted

_SHARE = "rollout.memory_utilization"


def more_cache(run: ConfigFacts, gpu: Gpu, host_bytes: int) -> Change | None:
    """The mildest change with which the cache holds enough sequences, else the one that gives most of them.

    None where it holds enough as it is, and where nothing gives more.
    """
    if {"data.train_batch_size", "rollout.n"} & set(run.without):
        return None
    now = predicted(run, gpu, host_bytes)
    if not 0 <= now.limits.concurrent_sequences < _enough(run):
        return None
    best: tuple[list[Step], MemoryProfile] = ([], now)
    for steps in _attempts(run, gpu, host_bytes):
        new = applied(run, steps)
        then = predicted(new, gpu, host_bytes)
        if then.limits.concurrent_sequences >= _enough(new):
            return msgspec.structs.replace(change(run, steps, now, then), fits=True)
        if then.limits.concurrent_sequences > best[1].limits.concurrent_sequences:
            best = (steps, then)
    steps, then = best
    return msgspec.structs.replace(change(run, steps, now, then), fits=False) if steps else None


def _enough(run: ConfigFacts) -> int:
    return min(FEW_SEQUENCES, wanted_sequences(run))


def _attempts(run: ConfigFacts, gpu: Gpu, host_bytes: int) -> Iterator[list[Step]]:
    """A shorter context costs nothing, a larger share only memory, a larger engine costs speed: in this order."""
    shorter, parallel = for_cache(run)
    for larger in ([], *([step] for step in parallel)):
        for length in ([], *([step] for step in shorter)):
            steps = [*length, *larger]
            if steps:
                yield steps
            for share in _shares(applied(run, steps), gpu, host_bytes):
                yield [*steps, Step(f"engine's share of the GPU {share:g}", "more_cache", ((_SHARE, share),))]


def _shares(run: ConfigFacts, gpu: Gpu, host_bytes: int) -> list[float]:
    """Larger shares that fit: first one that leaves some room, then the largest of all."""
    if not fields.key_of(run, _SHARE):
        return []
    found = (largest_share(run, gpu, host_bytes, left) for left in (TIGHT, 0.0))
    return [share for share in dict.fromkeys(found) if share > run.spec.rollout.memory_utilization]
