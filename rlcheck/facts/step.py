"""What the proof of a training step found: a chain of links, each recomputed and compared."""

from __future__ import annotations

from typing import Literal

from rlcheck.facts.base import Struct
from rlcheck.facts.rollout import Failure, StageTime

LINKS = ("prompts", "prompt-ids", "sampling", "start-weights", "engine-weights", "answers", "engine-log-probs",
         "old-log-probs", "reference-log-probs", "values", "rewards", "advantages", "update-rows", "update-log-probs",
         "loss", "gradient", "clip", "optimizer", "engine-after")  # fmt: skip
"""The chain, in the order in which a fault passes from one to the next."""


class Link(Struct, frozen=True):
    """One link of the chain, judged with what the capsule says of the links before it.

    `status`: `same`, `differs`, `unknown` (`said` has why it could not be recomputed), or `absent`: the config asks for
    no such thing, or not in this step. `compared`: how many numbers.
    `largest`: the largest difference, in `unit`; `bound`: what rounding explains at most. `where`: rows, positions,
    ranks, tensors, worst first. `causes`: what would explain this pattern and was tried, such as "goes away at
    temperature 0.7".
    """

    name: str
    status: Literal["same", "differs", "unknown", "absent"]
    said: str = ""
    compared: int = 0
    largest: float | None = None
    bound: float | None = None
    unit: str = ""
    where: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


class CapsuleProof(Struct, frozen=True):
    """The chain of one capsule. `seconds`: that its proof took. `digest`: of the capsule's files that were read."""

    path: str
    step: int
    trainer: str
    rows: int
    proven_rows: int
    links: tuple[Link, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    digest: str = ""


class Replay(Struct, frozen=True):
    """A captured step that the trainer has run again, compared bit by bit.

    `links`: quantities in the order of computation. `changed`: versions and parts of the machine that are others than
    in the recorded step. `device`: where one micro batch was run, compared with the device `against`; "": the step was
    run again whole, and compared with the capsule.
    """

    path: str
    step: int
    links: tuple[Link, ...]
    seconds: float
    changed: tuple[str, ...] = ()
    device: str = ""
    against: str = ""
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Link | None:
        """The first quantity that differs. What the engine sampled counts last: training has not read it."""
        return next((link for link in self.links if link.status == "differs"), None)


class StepFacts(Struct, frozen=True):
    """Proofs of capsules, in the order of their steps, and what became of those that were run again. `failure`: why
    there are no more of them."""

    capsules: tuple[CapsuleProof, ...] = ()
    replays: tuple[Replay, ...] = ()
    stages: tuple[StageTime, ...] = ()
    seconds: float = 0.0
    failure: Failure | None = None
