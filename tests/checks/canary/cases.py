"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from __future__ import annotations

from typing import Any

import msgspec

from rlcheck.facts.base import known
from rlcheck.facts.canary import CanaryFacts, Distance, Split
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import Failure

NEAR = Distance(name="the checkpoint", mean=6e-7, largest=5e-6, num_tokens=188)
FAR = Distance(name="the checkpoint", mean=0.7, largest=2.8, num_tokens=188)
BARE = "the checkpoint without its adapter"
HEALTH = CanaryFacts(
    url="http://127.0.0.1:8000", engine="vllm", version="0.32.0", model="m", checkpoint="new", dtype="float32",
    direct=known(NEAR), cached=known(NEAR), rounding=known(Distance(name="float32", mean=7e-7, largest=3e-6)),
    bound_mean=2.8e-6, bound_largest=1.2e-5, num_texts=7, splits=known(()), prefix_tokens=184,
)  # fmt: skip


def canary(**changes: Any) -> Facts:
    """A healthy server but for CHANGES."""
    return Facts(canary=known(msgspec.structs.replace(HEALTH, **changes)))


def _equal(name: str) -> tuple[Distance, ...]:
    return (msgspec.structs.replace(NEAR, name=name),)


HEALTHY = canary()
FAILED = canary(failure=Failure(stage="checkpoint", kind="user", line="new cannot be loaded as a model"))
STALE = canary(direct=known(FAR), cached=known(FAR), others=_equal("old"))
ONE_TENSOR = canary(direct=known(FAR), others=(msgspec.structs.replace(FAR, name="old"),), stale_from="old",
                    stale_tensors=("model.norm.weight",))  # fmt: skip
NO_LORA = canary(direct=known(FAR), adapter="lora", others=_equal(BARE))
FOREIGN = canary(direct=known(FAR))
CASES = {
    "CAN001": (FAILED, HEALTHY),
    "CAN002": (STALE, HEALTHY),
    "CAN003": (canary(cached=known(FAR)), HEALTHY),
    "CAN004": (canary(splits=known((Split(text="12", server=(1, 2), checkpoint=(3,)),))), HEALTHY),
}
