"""Cases of the checks of resume: CFG071 and up."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from tests.checks.config.build import facts

A = "actor_rollout_ref.actor.checkpoint"
SAVES = {"save_freq": 50}
ASYNC = {f"{A}.async_save": True}
ALL = ["model", "optimizer", "extra"]
FEW = {**SAVES, "total_steps": 237, "data.train_max_samples": 102_400}


def kept(number: int) -> dict[str, int]:
    """How many checkpoints of the actor are kept."""
    return {"trainer.max_actor_ckpt_to_keep": number}


def contents(saved: list[str], loaded: list[str]) -> dict[str, list[str]]:
    """What the actor's checkpoints hold, and what is loaded of them."""
    return {f"{A}.save_contents": saved, f"{A}.load_contents": loaded}


CASES: dict[str, tuple[Facts, Facts]] = {
    "CFG071": (facts(SAVES, values=ASYNC), facts({**SAVES, "actor.sharding.strategy": "megatron"}, values=ASYNC)),
    "CFG072": (facts(FEW), facts({**FEW, "total_epochs": 3})),
    "CFG073": (facts(SAVES, values=kept(1)), facts(SAVES, values=kept(2))),
    "CFG074": (facts(SAVES, values=contents(["model"], ALL)), facts(SAVES, values=contents(ALL, ALL))),
}
OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "CFG071": (
        facts(values={"trainer.resume_from_path": "/c/global_step_9"}),
        facts(values={"trainer.resume_from_path": "/c", "trainer.resume_mode": "resume_path"}),
        facts(values={"trainer.default_hdfs_dir": "hdfs://c"}),
    ),
    "CFG074": (facts(SAVES, values=contents(["model"], ["model"])),),
}
