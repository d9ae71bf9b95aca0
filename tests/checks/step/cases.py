"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from __future__ import annotations

import msgspec

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import Failure
from rlcheck.facts.step import LINKS, CapsuleProof, Link, Replay, StepFacts


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


def replayed(*differing: str, changed: tuple[str, ...] = (), devices: tuple[str, ...] = ()) -> Facts:
    """A step that was run again, whole or on DEVICES, of which the last differs in the quantities DIFFERING."""
    names = ("outputs", "old-log-probs", "gradient", "after", "answers")
    same = tuple(Link(name=name, status="same", compared=64) for name in names)
    other = tuple(differs(link.name) if link.name in differing else link for link in same)
    one = Replay(path="run/capsules/step_2", step=2, links=other, seconds=9.0, changed=changed, notes=("a note",))
    if not devices:
        return Facts(step=known(StepFacts(replays=(one,))))
    each = [msgspec.structs.replace(one, device=name, against=devices[0], links=same) for name in devices]
    each[-1] = msgspec.structs.replace(each[-1], links=other)
    return Facts(step=known(StepFacts(replays=tuple(each))))


CHANGED, GPUS = ("torch 2.9.0 -> 2.9.1",), ("GPU 0", "GPU 1", "GPU 2")
HEALTHY = proven(proof(1), proof(2))
DAMAGED = proven(failure=Failure(stage="reading", kind="user", line="capsule.json: schema 9, this reads 1"))
_LATER = {"start-weights": "STP020"}
IDS = {_LATER.get(name, ""): name for name in LINKS if name in _LATER} | {
    f"STP{number + 2:03d}": name for number, name in enumerate(name for name in LINKS if name not in _LATER)
}
CASES = {"STP001": (DAMAGED, HEALTHY)} | {
    id: (proven(proof(1), proof(2, differs(name))), HEALTHY) for id, name in IDS.items()
}
AGAIN = {
    "STP021": (replayed("outputs", "gradient"), replayed()),
    "STP022": (replayed("gradient", changed=CHANGED), replayed(changed=CHANGED)),
    "STP023": (replayed("gradient", "after", devices=GPUS), replayed(devices=GPUS)),
    "STP024": (replayed("answers"), replayed()),
}
CASES |= AGAIN
