"""What `rlcheck canary` found: log-probabilities of a live server against a forward pass of the saved checkpoint."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct
from rlcheck.facts.rollout import Failure, StageTime


class Distance(Struct, frozen=True):
    """|difference of natural log-probabilities| between the server and what `name` says, over `num_tokens` tokens."""

    name: str
    mean: float
    largest: float
    num_tokens: int = 0


class Split(Struct, frozen=True):
    """One text that server and checkpoint split into tokens otherwise, as ids."""

    text: str
    server: tuple[int, ...]
    checkpoint: tuple[int, ...]


class CanaryFacts(Struct, frozen=True):
    """One server against one checkpoint.

    `direct`: prompts, without a cache; `cached`: tokens behind a long prefix that was asked twice. `rounding`:
    how far the checkpoint's own forward pass in the server's dtype is from one in the next finer dtype, on the same
    tokens; `bound_mean` and `bound_largest` are made from it. `others`: the same prompts against other weights: earlier
    checkpoints, the checkpoint without its adapter. `stale_tensors`: with these of an earlier checkpoint, and all
    others of the checkpoint, the server's values come out.
    """

    url: str = ""
    engine: str = ""
    version: str = ""
    model: str = ""
    checkpoint: str = ""
    adapter: str = ""
    dtype: str = ""
    direct: Fact[Distance] = Fact()
    cached: Fact[Distance] = Fact()
    rounding: Fact[Distance] = Fact()
    bound_mean: float = 0.0
    bound_largest: float = 0.0
    others: tuple[Distance, ...] = ()
    stale_tensors: tuple[str, ...] = ()
    stale_from: str = ""
    num_texts: int = 0
    splits: Fact[tuple[Split, ...]] = Fact()
    prefix_tokens: int = 0
    stages: tuple[StageTime, ...] = ()
    failure: Failure | None = None
    notes: tuple[str, ...] = ()

    def within(self, distance: Distance) -> bool:
        """Whether rounding explains it."""
        return distance.mean <= self.bound_mean and distance.largest <= self.bound_largest
