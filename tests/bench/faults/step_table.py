"""What `rlcheck step` must say of each run of bench_step.py, written before the runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.bench.faults.fault import Fault
from tests.bench.faults.step_sound import SOUND, Sound
from tests.bench.faults.table import FAULTS, SUBTLE

COUNT = 58
SOUND_STEPS = (1, 2, 3)
ENGINE = ("engine-weights", "engine-after")
TOKENS = ("prompt-ids", "answers")
OUTSIDE = "the config asks for it, and the step does it"
"""Why a fault that is no mistake in code is called outside of a step, before the runs."""
REFUSED = {"targets-shifted": "it is no causal language model"}
"""Mistakes that set-up refuses today, before a step is made: what the run ends with."""
NO_STEP = ("killed", "slower", "slow-rank", "leak")
"""Mistakes that no number of a step shows: such runs are not made."""
EXPECTED: dict[str, tuple[str, ...]] = {
    "sync": ENGINE, "layer": ENGINE, "head": ENGINE, "norm": ENGINE, "projections": ENGINE, "stale": ENGINE,
    "temperature-raw": ("engine-log-probs",), "temperature-forgotten": ("old-log-probs",),
    "temperature-config": ("sampling", "engine-log-probs"), "template": TOKENS, "special": TOKENS,
    "responses": ("answers",), "bf16-logits-engine": ("engine-log-probs",), "bf16-logits": ("old-log-probs",),
    "bf16-engine": ("engine-log-probs",), "targets": ("old-log-probs",), "reward": ("rewards", "advantages"),
    "advantages": ("advantages",), "seeds": ("sampling",), "truncated": ("sampling", "answers"),
    "eos": ("sampling", "answers"), "lr-unseen": ("clip", "optimizer"), "spike": ("loss", "gradient"),
    "critic-detached": ("gradient", "optimizer"), "critic-others": ("update-rows", "loss"),
    "not-sharded": ("update-rows", "gradient"), "entropy": ("loss", "gradient"), "kl-sign": ("loss", "gradient"),
    "kl-reward": ("advantages",), "nan": ("loss", "gradient", "optimizer"), "weights-fixed": ("optimizer",),
    "loss-without": ("update-rows", "loss"), "subtle-01": ("reference-log-probs",),
    "subtle-02": ("update-rows", "loss"),
    "subtle-03": ("old-log-probs",), "subtle-04": ("old-log-probs",), "subtle-05": ("advantages",),
    "subtle-06": ("loss", "gradient"), "subtle-07": ("optimizer",), "subtle-08": ("old-log-probs",),
    "subtle-10": ("advantages",), "subtle-11": ("prompts", "sampling"), "subtle-12": ("gradient",),
    "subtle-13": ("update-rows", "loss", "advantages"), "subtle-14": ("answers", "rewards"), "subtle-15": ENGINE,
}  # fmt: skip
"""The links that are right, by how a fault's name begins; the longest beginning counts."""


@dataclass(frozen=True)
class Run:
    """One run to make, and what its capsules must show."""

    name: str
    recipe: str
    overrides: tuple[str, ...]
    steps: tuple[int, ...]
    """Whose capsules are kept."""
    mistake: str = ""
    expected: tuple[str, ...] = ()
    """Links of which one must be the first to differ; empty: none may."""
    unknown: tuple[str, ...] = ()
    """Of a healthy run: links that may stay unknown."""
    resume_at: int = 0
    refused: str = ""
    """What the run may end with instead."""
    outside: bool = False
    """The config asks for what it does: not made."""


def expected(name: str) -> tuple[str, ...]:
    """The links of which one must be the first to differ in the capsules of the fault NAME."""
    begins = [begin for begin in EXPECTED if name.startswith(begin)]
    return EXPECTED[max(begins, key=len)] if begins else ()


def faults(steps: tuple[int, ...]) -> list[Run]:
    """The subtle ones, those of the short bench, and of the others the first mistakes in code, to `COUNT`."""
    short = [*SUBTLE, *(fault for fault in FAULTS if not fault.extra)]
    more = [fault for fault in FAULTS if fault.extra and fault.mistake and fault.name not in NO_STEP]
    return [_faulty(fault, steps) for fault in (*short, *more[: COUNT - len(short)])]


def _faulty(fault: Fault, steps: tuple[int, ...]) -> Run:
    # A mistake that begins later begins at step 2 here.
    sooner = re.sub(r'("step": )\d+', r"\g<1>2", fault.mistake)
    return Run(
        fault.name,
        fault.recipe,
        (*fault.overrides, "actor_rollout_ref.actor.optim.lr_scheduler_type=constant"),
        steps,
        sooner,
        expected(fault.name) if fault.mistake else (),
        refused=REFUSED.get(fault.name, ""),
        outside=not fault.mistake,
    )


def healthy() -> list[Run]:
    """The runs without a mistake."""
    return [_sound(run) for run in SOUND]


def _sound(run: Sound) -> Run:
    steps = (*SOUND_STEPS, *((run.resume_at + 2,) if run.resume_at else ()))
    return Run(run.name, run.recipe, run.overrides, steps, unknown=run.unknown, resume_at=run.resume_at)
