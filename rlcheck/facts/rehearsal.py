"""What a kill and a resume did to a run, when `rlcheck preflight --rehearse` tried it."""

from __future__ import annotations

from typing import Literal

from rlcheck.facts.base import Struct
from rlcheck.facts.rollout import Failure, StageTime

Lost = Literal["", "data position", "weights or random numbers", "optimizer", "schedule"]


class Difference(Struct, frozen=True):
    """A metric that two runs do not share: `straight` was not stopped, `other` was."""

    step: int
    name: str
    straight: str
    other: str


class RehearsalFacts(Struct, frozen=True):
    """Two runs of one config, cut down: one of `steps` steps, one killed in between and started again.

    `killed_after`: its last finished step; `saved`: steps with a finished checkpoint then; `resumed_from`: the step
    that the second start went on from, 0 where it started over. `early`: the first difference before the kill, by which
    a run does not repeat itself and nothing can be said of the resume; `first`: the first one after it. `compared`:
    values that were held against each other. `lost`: which part of the training the first difference speaks for.
    `overrides`: what was changed in the config. `failure`: as in `SmokeFacts`.
    """

    target: str = ""
    stages: tuple[StageTime, ...] = ()
    steps: int = 0
    killed_after: int = 0
    saved: tuple[int, ...] = ()
    resumed_from: int = 0
    save_freq: int = 0
    resume_mode: str = ""
    compared: int = 0
    early: Difference | None = None
    first: Difference | None = None
    lost: Lost = ""
    overrides: tuple[str, ...] = ()
    seconds: float = 0.0
    failure: Failure | None = None
