"""RUN010: what the run measured is numbers."""

from __future__ import annotations

import re

from rlcheck.check import Verdict, check, fail, passed, unknown, warn
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, proof, run_of
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.look import steps_words, window

_UNDEFINED = re.compile(r"corr$|slope$|_std$|/std$|explained_var|ppl|aborted|diff_(?:first|last)$|^val")
"""Metrics that no value need be defined for: a correlation with a constant, a spread of one value."""
_LEARNT = re.compile(r"^(?:actor|critic)/(?:pg_|vf_|kl_|ppo_kl|loss|grad_norm|entropy|score|rewards|advantages|values)")
"""What the update reads or writes: a NaN here reaches the weights."""
_ORDER = (
    "score",
    "rewards",
    "values",
    "returns",
    "advantages",
    "entropy",
    "pg_loss",
    "vf_loss",
    "kl",
    "loss",
    "grad_norm",
)
_SAID = re.compile(r"\b(?:is|are|was|gave|returned|found) (?:nan|inf|-inf)\b|not finite|non-finite", re.I)
_SKIPPED = "actor/skipped_steps"


@check("RUN010", "Metrics of the run are finite", needs=NEEDS, playbook="training-turned-nan", caused_by=("RUN031",),
       problem="Metrics of the run are not finite")  # fmt: skip
def metrics_are_numbers(facts: Facts) -> Verdict:
    """No metric that learning depends on is NaN or infinite.

    What it does:
        Looks for the first step at which a metric is no number, and which was first; a spread of one value or a
        correlation with a constant may be NaN and is passed over.

    Why it matters:
        One value that is no number spreads through means and norms, and the update writes it into every weight; from
        then on the run trains nothing.
    """
    run = run_of(facts)
    lost = sorted(
        ((curve.nonfinite[0], name) for name, curve in run.curves.items() if _counts(name, curve)),
        key=lambda one: (one[0], not _LEARNT.match(one[1]), _depth(one[1]), one[1]),
    )
    if not lost:
        return _none_lost(run)
    step, name = lost[0]
    curve = run.curves[name]
    others = [other for at, other in lost[1:] if at == step]
    details = (*(f"{other}: no number from step {at}" for at, other in lost[:6]), *_before(run, name, step))
    found = f"{name} is no number at {_where(curve)}{f', and {len(others)} more metrics' if others else ''}"
    more = {"details": details, "evidence": (proof(name, "NaN or infinite", step),)}
    serious = [other for _, other in lost if _LEARNT.match(other) and _stays(run, run.curves[other])]
    if serious:
        return fail("metrics that are finite", found, **more)
    return warn("metrics that are finite", found, **more)


def _counts(name: str, curve: Curve) -> bool:
    return bool(curve.nonfinite) and not _UNDEFINED.search(name)


def _depth(name: str) -> int:
    """How late in a step a metric is computed: of several lost at once, the earliest is nearest to the cause."""
    return next((place for place, part in enumerate(_ORDER) if part in name), len(_ORDER))


def _none_lost(run: RunFacts) -> Verdict:
    if _SAID.search(run.error):
        return fail(
            "rewards and losses that are finite",
            f"the run stopped: {' '.join(run.error.split())[:200]}",
            evidence=(proof("error", "what the run said", run.last_step),),
        )
    if not run.num_steps or not run.curves:
        return unknown("the run has written no metrics of a step")
    return passed(f"{len(run.curves)} metrics over {run.num_steps} steps, all finite")


def _where(curve: Curve) -> str:
    first, last = curve.nonfinite[0], curve.nonfinite[-1]
    return f"{steps_words(first, last)}" if len(curve.nonfinite) > 1 else f"step {first}"


def _stays(run: RunFacts, curve: Curve) -> bool:
    """It came back in no later step, or in several in a row; a single step that was skipped is the guard at work."""
    first = curve.nonfinite[0]
    if len(curve.nonfinite) > 1 or not curve.steps or curve.steps[-1] < first:
        skipped = curve_of(run, _SKIPPED)
        # Every update of that step was left out, so the weights are what they were.
        return skipped is None or not any(window(skipped, first, first).values) or len(curve.nonfinite) > 2
    return False


def _before(run: RunFacts, name: str, step: int) -> tuple[str, ...]:
    """What the metric and its likely sources did up to there."""
    return drawn(run, name, "actor/grad_norm", "critic/score/mean", last=step)[:3]
