"""What one training step of a config did, when `rlcheck preflight --smoke` made it."""

from __future__ import annotations

from rlcheck.facts.base import Struct
from rlcheck.facts.rollout import Failure, StageTime


class SmokeFacts(Struct, frozen=True):
    """One step on a batch that was cut down to what the config's own rules allow.

    `stages`: what the run said of itself, with times. `overrides`: what was changed in the config. `metrics`: of the
    step, finite ones alone; `not_finite`: names of the others. `seconds`: from the start of the run to its end.
    `failure`: why there was no step; its `kind` is user (a config that is refused), crash, died, timeout, missing (no
    trainer installed there) or run (the run started, and failed).
    """

    target: str = ""
    stages: tuple[StageTime, ...] = ()
    train_batch_size: int = 0
    overrides: tuple[str, ...] = ()
    metrics: dict[str, float] = {}
    not_finite: tuple[str, ...] = ()
    seconds: float = 0.0
    failure: Failure | None = None
