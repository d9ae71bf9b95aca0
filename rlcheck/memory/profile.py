"""The whole answer for one run on one kind of GPU: the prediction, its limits, and what to change."""

from __future__ import annotations

import msgspec

from rlcheck.facts.memory import MemoryProfile
from rlcheck.facts.run import RunFacts
from rlcheck.memory.advice import changes
from rlcheck.memory.limits import limits
from rlcheck.memory.predict import Gpu, predict
from rlcheck.memory.whatif import settled


def profile(run: RunFacts, gpu: Gpu, host_bytes: int) -> MemoryProfile:
    """Predict the memory of a run.

    Args:
        run: what was read.
        gpu: kind of all GPUs.
        host_bytes: RAM of a node, 0 where it is not known.
    """
    now = settled(predict(run, gpu, host_bytes))
    return msgspec.structs.replace(now, limits=limits(run, gpu, host_bytes), changes=changes(run, gpu, host_bytes))
