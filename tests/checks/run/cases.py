"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from typing import Any

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import Failure, StageTime
from rlcheck.facts.smoke import SmokeFacts
from tests.checks.run import learning_cases, optimisation_cases


def step(**changes: Any) -> Facts:
    """A step that went through."""
    usual: dict[str, Any] = {
        "target": "toy-ppo",
        "stages": (StageTime(name="starting Ray", seconds=6.0),),
        "train_batch_size": 128,
        "metrics": {"actor/pg_loss": 0.01, "actor/grad_norm": 1.5},
        "seconds": 25.0,
    }
    return Facts(smoke=known(SmokeFacts(**{**usual, **changes})))


def broken(kind: str, line: str, **more: Any) -> Facts:
    """A step that did not."""
    return step(metrics={}, failure=Failure(stage="run", kind=kind, line=line, **more))


CASES: dict[str, tuple[Facts, Facts]] = {
    "RUN001": (broken("run", "training rank 0 died with signal 9", root="CUDA out of memory"), step()),
    "RUN002": (step(not_finite=("actor/pg_loss", "actor/grad_norm")), step()),
    **learning_cases.CASES,
    **optimisation_cases.CASES,
}

OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "RUN001": (broken("timeout", "did not answer within 600 s in stage run", known="gpu-out-of-memory"),),
    **learning_cases.OTHER_FIRES,
    **optimisation_cases.OTHER_FIRES,
}
