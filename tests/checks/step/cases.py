"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from __future__ import annotations

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import Failure
from rlcheck.facts.step import LINKS, CapsuleProof, Link, StepFacts


def proof(step: int, *links: Link) -> CapsuleProof:
    """A capsule whose LINKS are as given, and all others the same."""
    given = {link.name: link for link in links}
    chain = tuple(given.get(name, Link(name=name, status="same", compared=512)) for name in LINKS)
    return CapsuleProof(path=f"run/capsules/step_{step}", step=step, trainer="rltrain", rows=512, proven_rows=512,
                        links=chain, seconds=1.5)  # fmt: skip


def proven(*capsules: CapsuleProof, failure: Failure | None = None) -> Facts:
    return Facts(step=known(StepFacts(capsules=capsules, seconds=3.0, failure=failure)))


def differs(name: str) -> Link:
    return Link(name=name, status="differs", said=f"{name}: 3 of 512 differ", compared=512, largest=0.5, unit="nats",
                bound=1e-6, where=("row 3, token 2", "row 9, token 1"),
                causes=("goes away at temperature 0.7",))  # fmt: skip


HEALTHY = proven(proof(1), proof(2))
DAMAGED = proven(failure=Failure(stage="reading", kind="user", line="capsule.json: schema 9, this reads 1"))
IDS = {f"STP{number + 2:03d}": name for number, name in enumerate(LINKS)}
CASES = {"STP001": (DAMAGED, HEALTHY)} | {
    id: (proven(proof(1), proof(2, differs(name))), HEALTHY) for id, name in IDS.items()
}
