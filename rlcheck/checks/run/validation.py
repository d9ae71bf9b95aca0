"""RUN021: what is learnt in training shows in validation."""

from __future__ import annotations

from typing import Any

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, warn
from rlcheck.checks.run.behaviour import REWARD
from rlcheck.checks.run.causes import ROOTS
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, proof, run_of, samples_of
from rlcheck.checks.run.trend import Rewards, Rise, rewards_of, rise
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import steps_words, window

_LEAST = 3
_SAMPLED = 5
"""Steps with samples, in all of which the same prompts are no chance."""


def validation(run: RunFacts) -> tuple[str, Curve] | None:
    """The validation reward and its name: the mean over all of it, or the first source's; None if there is none."""
    mean = curve_of(run, "val/reward/mean")
    if mean is not None:
        return "val/reward/mean", mean
    named = sorted(name for name, curve in run.curves.items() if name.startswith("val") and curve.values)
    by_source = [name for name in named if name.startswith("val-core/")]
    plain = [name for name in named if "reward" in name or "score" in name or "acc" in name]
    name = next(iter((*by_source, *plain)), None)
    return None if name is None else (name, run.curves[name])


def validation_rises(run: RunFacts) -> bool:
    """Whether validation ends near its best, and above where it began."""
    found = validation(run)
    if found is None or len(found[1].values) < 2:
        return False
    values = found[1].values
    return values[-1] > values[0] and max(values) - values[-1] <= (max(values) - min(values)) / 4


@check("RUN021", "Validation follows training", needs=NEEDS, playbook="validation-does-not-follow",
       caused_by=(*ROOTS, "RUN017", "RUN019", "RUN034"))  # fmt: skip
def validation_follows(facts: Facts) -> Verdict:
    """While the training reward rises, the validation reward does not stand still or fall.

    What it does:
        Compares the two over the steps that validation covers, each from its first to its last value. Looks whether
        the samples of all steps answer the same prompts.

    Why it matters:
        A reward that rises in training alone is learnt by heart, or earned by what validation does not pay for: the
        policy gets worse at the task.
    """
    run = run_of(facts)
    rewards, val = rewards_of(run), validation(run)
    if rewards is None:
        return lacking(run, *REWARD)
    again = _same_prompts(run)
    found = _compared(rewards, val, run)
    return found if again is None or found.status == "fail" else again


def _compared(rewards: Rewards, val: tuple[str, Curve] | None, run: RunFacts) -> Verdict:
    if val is None:
        return skip("the run has no validation")
    name, curve = val
    if len(curve.values) < _LEAST:
        return skip(f"{len(curve.values)} validations, too few to judge ({_LEAST} are)")
    first, last = curve.steps[0], curve.steps[-1]
    train = rise(window(rewards.mean, first, last))
    if train is None or train.sigmas < limit("sigmas") or train.change < limit("train_rise") * rewards.span:
        return skip("the training reward has not risen enough for validation to show it")
    return _judge(run, rewards, train, name, curve)


def _same_prompts(run: RunFacts) -> Verdict | None:
    """The samples of every step answer the same prompts: training sees nothing else."""
    by_step: dict[int, set[str]] = {}
    for row in samples_of(run):
        by_step.setdefault(row.step, set()).add(row.prompt)
    steps, sets = sorted(by_step), list(by_step.values())
    # A single prompt may be one that is written down on purpose, to be followed.
    if len(steps) < _SAMPLED or len(sets[0]) < 2 or any(one != sets[0] for one in sets) or "" in sets[0]:
        return None
    words = f"the samples of all {len(steps)} steps that have some answer the same {len(sets[0])} prompts"
    return warn(
        "other prompts from step to step",
        f"{words}, {steps_words(steps[0], steps[-1])}: what is learnt for them need not hold for others",
        details=drawn(run, REWARD[0], "val/reward/mean"),
        evidence=(evidence("run.samples", words, "prompts of samples, by step"),),
    )


def _judge(run: RunFacts, rewards: Rewards, train: Rise, name: str, curve: Curve) -> Verdict:
    first, last = curve.steps[0], curve.steps[-1]
    gained, best = curve.values[-1] - curve.values[0], max(curve.values)
    words = (f"training {train.first:.4g} to {train.last:.4g}, validation {curve.values[0]:.4g} to "
             f"{curve.values[-1]:.4g}")  # fmt: skip
    top = curve.steps[curve.values.index(best)]
    more: dict[str, Any] = {
        "details": (*drawn(run, REWARD[0], name), f"validation was best at step {top}: {best:.4g}"),
        "evidence": (proof(name, words, first, last),),
    }
    found = f"{words}, {steps_words(first, last)}"
    if gained < -limit("val_fall") * rewards.span:
        return fail("validation that rises with training", found, **more)
    at_ceiling = curve.values[0] >= rewards.high - limit("val_fall") * rewards.span
    if gained > train.change / 10 or at_ceiling:
        return passed(words)
    return warn("validation that rises with training", found, **more)
