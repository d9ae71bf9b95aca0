"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from __future__ import annotations

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.rehearsal import Difference, RehearsalFacts
from rlcheck.facts.resume import Damage, Lack, ResumeFacts, Saved
from rlcheck.facts.rollout import Failure


def checkpoints(*saved: Saved, **more: object) -> Facts:
    """verl's checkpoints, of which automatic resume takes the last."""
    values = {"chosen": saved[-1].step, "chosen_why": "the tracker says so", **more}
    return Facts(resume=known(ResumeFacts(maker="verl", place="/c", checkpoints=saved, **values)))  # pyright: ignore


def at(step: int, **more: object) -> Saved:
    """A whole checkpoint of two ranks, changed by MORE."""
    values = {"world_sizes": (2,), "needs_ranks": True, "files": 7, "bytes": 7000, **more}
    return Saved(step=step, name=f"global_step_{step}", **values)  # pyright: ignore


def rehearsed(**more: object) -> Facts:
    """A kill after step 2 that lost nothing, changed by MORE."""
    values = {"steps": 4, "killed_after": 2, "saved": (1, 2), "resumed_from": 2, "compared": 400, "save_freq": 20,
              "resume_mode": "auto", **more}  # fmt: skip
    return Facts(rehearsal=known(RehearsalFacts(**values)))  # pyright: ignore


CUT = (Damage(file="actor/model_world_size_2_rank_1.pt", kind="cut", why="is cut"),)
HEALTHY = checkpoints(at(10), at(20), total_steps=100, wanted_ranks=2)
CASES: dict[str, tuple[Facts, Facts]] = {
    "RES001": (checkpoints(at(10, unfinished="no complete.json")), HEALTHY),
    "RES002": (checkpoints(at(10), at(20), chosen=None, chosen_why="there is no tracker"), HEALTHY),
    "RES003": (checkpoints(at(10), at(20, damages=CUT)), HEALTHY),
    "RES004": (checkpoints(at(10), at(20, lacks=(Lack(part="optimizer", file="optimizer.pt"),))), HEALTHY),
    "RES005": (checkpoints(at(10), at(20), wanted_ranks=4), HEALTHY),
    "RES006": (checkpoints(at(10), at(20), total_steps=20), HEALTHY),
    "RES007": (checkpoints(at(20)), HEALTHY),
    "RES008": (rehearsed(saved=(), resumed_from=0, save_freq=-1), rehearsed()),
    "RES009": (rehearsed(resumed_from=0, resume_mode="disable"), rehearsed()),
    "RES010": (rehearsed(first=Difference(3, "actor/lr", "1", "2"), lost="schedule"), rehearsed()),
}
OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "RES002": (
        checkpoints(at(10), at(20, unfinished="cut off"), chosen_error="cut off"),
        checkpoints(at(10), at(20), chosen=10),
    ),
    "RES003": (checkpoints(at(10, damages=CUT), at(20)),),
    "RES004": (checkpoints(at(10), at(20, lacks=(Lack(part="data order", file="data.pt"),))),),
    "RES008": (rehearsed(failure=Failure(stage="resume, to the end", kind="run", line="boom")),),
    "RES009": (rehearsed(resumed_from=1),),
    "RES005": (
        checkpoints(at(10), at(20, world_sizes=(2, 4))),
        checkpoints(at(10), at(20, needs_ranks=False), wanted_ranks=8),
    ),
}
