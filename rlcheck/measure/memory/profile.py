"""The whole answer for one run on one kind of GPU: the prediction, its limits, and what to change."""

from __future__ import annotations

import msgspec

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import MemoryProfile
from rlcheck.measure.memory.advice import changes
from rlcheck.measure.memory.cache import more_cache
from rlcheck.measure.memory.lengths import longest_mean
from rlcheck.measure.memory.limits import limits
from rlcheck.measure.memory.predict import Gpu, predict
from rlcheck.measure.memory.summary import fits
from rlcheck.measure.memory.whatif import settled


def profile(run: ConfigFacts, gpu: Gpu, host_bytes: int) -> MemoryProfile:
    """Predict the memory of a run.

    Args:
        run: what was read.
        gpu: kind of all GPUs.
        host_bytes: RAM of a node, 0 where it is not known.
    """
    now = settled(predict(run, gpu, host_bytes))
    return msgspec.structs.replace(
        now,
        mean_tokens=0 if fits(now) else longest_mean(run, gpu),
        longest_tokens=run.spec.data.max_prompt_length + run.spec.data.max_response_length,
        limits=limits(run, gpu, host_bytes),
        changes=changes(run, gpu, host_bytes),
        more_cache=more_cache(run, gpu, host_bytes),
    )
