"""RUN031 on runs whose gradients are naturally long at times, and on runs that a gradient really broke.

Curves are made: those of TRL as it logs them (no config, the norm before its clip), and those of a run without a clip.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from tests.checks.run.synthetic import ACTOR, curve

CHECK = next(check for check in family_checks("RUN") if check.id == "RUN031")
SEEDS = range(40)
TAILS = ("lognormal", "pareto", "idle", "drifting")
NO_CLIP = {f"{ACTOR}.grad_clip": None}


def norms(chance: random.Random, tail: str, steps: int) -> list[float]:
    """Gradient norms of a healthy run: of a heavy tail, or of steps most of which have nothing to learn from."""
    if tail == "pareto":
        return [0.2 * chance.paretovariate(1.5) for _ in range(steps)]
    if tail == "idle":
        return [
            chance.lognormvariate(0, 0.8) if chance.random() < 0.3 else 0.01 * chance.random() for _ in range(steps)
        ]
    return [0.3 * chance.lognormvariate(0, 1.3 if tail == "lognormal" else 0.9) for _ in range(steps)]


def run_of(seed: int, tail: str, framework: str = "trl", steps: int = 200, **changed: Any) -> RunFacts:
    """A healthy run: a few answers of 0 or 1 a step, whose mean rises, stops to rise, and wanders."""
    chance = random.Random(f"{seed}{tail}")
    wander, rewards = 0.0, list[float]()
    for step in range(steps):
        wander = 0.9 * wander + (0.05 * chance.gauss(0, 1) if tail == "drifting" else 0.0)
        level = min(0.95, max(0.05, 0.2 + 0.5 * (1 - math.exp(-step / 30)) + wander))
        rewards.append(sum(chance.random() < level for _ in range(16)) / 16)
    long = norms(chance, tail, steps)
    idle = [1.0 if norm < 0.02 else 0.25 for norm in long]
    curves = {
        "critic/score/mean": curve(rewards),
        "actor/grad_norm": curve(long),
        "actor/entropy": curve(0.6 - 0.3 * step / steps + 0.05 * chance.gauss(0, 1) for step in range(steps)),
        **({"train/zero_advantage_groups": curve(idle)} if seed % 2 else {}),
    }
    curves |= {name: curve(change(list(curves[name].values))) for name, change in changed.pop("by", {}).items()}
    return RunFacts(framework=framework, num_steps=steps, first_step=1, last_step=steps, curves=curves, **changed)


def judged(run: RunFacts) -> Verdict:
    return CHECK.judge(Facts(run=known(run)))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("framework", "settings"), [("trl", {}), ("", {}), ("verl", NO_CLIP)])
def test_healthy_runs_do_not_fail(tail: str, framework: str, settings: dict[str, Any]) -> None:
    found = [judged(run_of(seed, tail, framework, settings=settings)) for seed in SEEDS]
    assert [one.found for one in found if one.status == "fail"] == []
    assert sum(one.status == "warn" for one in found) <= len(SEEDS) // 10, "a warning is seldom right here"


@pytest.mark.parametrize("framework", ["trl", "", "verl"])
@pytest.mark.parametrize("seed", range(20))
def test_a_gradient_that_broke_the_run_fails(seed: int, framework: str) -> None:
    """At step 120 of 200 it is thousands of times the usual one, and from there on nothing is earned."""

    def broken(values: list[float]) -> list[float]:
        return [value if step < 120 else 0.0625 * (step % 7 == 0) for step, value in enumerate(values)]

    def spiked(values: list[float]) -> list[float]:
        return [3000.0 if step == 119 else value for step, value in enumerate(values)]

    run = run_of(seed, "drifting", framework, by={"critic/score/mean": broken, "actor/grad_norm": spiked},
                 settings=NO_CLIP if framework == "verl" else {})  # fmt: skip
    found = judged(run)
    assert found.status == "fail", found
    assert "at step 120" in found.found
    assert found.params["resume"] == "120"


def test_a_spike_that_the_run_forgets_is_a_warning() -> None:
    """The reward falls for twelve steps and is back: nothing to go back to a checkpoint for."""

    def dips(values: list[float]) -> list[float]:
        return [0.1 if 120 <= step < 132 else 0.7 for step in range(len(values))]

    def spiked(values: list[float]) -> list[float]:
        return [3000.0 if step == 119 else 0.5 for step in range(len(values))]

    found = judged(run_of(1, "drifting", by={"critic/score/mean": dips, "actor/grad_norm": spiked}))
    assert (found.status, found.params.get("resume")) == ("warn", None)


def test_steps_with_nothing_to_learn_from_do_not_say_what_is_usual() -> None:
    """Three of four steps have groups of one reward: their norm is that of the KL alone."""
    steps = 100
    long = [1.2 + 0.1 * (step % 3) if step % 4 == 0 else 0.004 for step in range(steps)]
    curves = {"actor/grad_norm": curve(long), "critic/score/mean": curve([0.5] * steps)}
    spread = Curve(steps=tuple(range(1, steps + 1)), values=tuple(0.3 if norm > 1 else 0.0 for norm in long))
    for name in ("reward_std", "train/reward_std"):
        run = RunFacts(framework="trl", num_steps=steps, first_step=1, last_step=steps, curves={**curves, name: spread})
        found = judged(run)
        assert (found.status, found.message) == ("pass", "actor at most 1.4"), found


def test_what_trl_clips_by_default_is_held() -> None:
    long = [0.4] * 60
    long[40] = 20.0
    flat = {"actor/grad_norm": curve(long), "critic/score/mean": curve([0.5] * 60)}
    held = judged(RunFacts(framework="trl", num_steps=60, first_step=1, last_step=60, curves=flat))
    assert held.message == "actor at most 20; 1 spikes, held by the clip"
    long[40] = 1.5e14
    huge = judged(RunFacts(framework="trl", num_steps=60, first_step=1, last_step=60,
                           curves={**flat, "actor/grad_norm": curve(long)}))  # fmt: skip
    assert huge.status == "warn"
    assert "TRL clips at 1 unless max_grad_norm says otherwise" in huge.found
