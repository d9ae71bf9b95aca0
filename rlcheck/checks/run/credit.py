"""For RUN012: whether an answer's advantage goes with its own score, and the ground truth is what earns most."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from rlcheck.check import Verdict, evidence, fail, warn
from rlcheck.checks.run.common import curve_of, drawn, number_setting, proof, run_of, samples_of, setting
from rlcheck.checks.run.likeness import expects_text, judged
from rlcheck.facts.base import value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts, SampleRow
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import median, steps_words

CREDIT = "critic/score_advantage_corr"
_WHOLE = ("exact", "digits")
"""Rules of rltrain that give all there is to an answer that is the ground truth."""
_ENOUGH = 3
_WILD = 5.0
"""Explained variance below minus this leaves little of the score in any advantage."""
_SHOWN = 4


def credit(facts: Facts) -> Verdict | None:
    """Advantages that do not go with the scores of their own answers; None: they do, or it is not known."""
    run = run_of(facts)
    curve = curve_of(run, CREDIT)
    if curve is None or len(curve.values) < _ENOUGH or setting(run, "algorithm.use_kl_in_reward"):
        return None
    found = median(curve.values) or 0.0
    if found > _least(run) or (found > -limit("credit_turned") and not _is_plain(run)):
        return None
    turned = found <= -limit("credit_turned")
    what = (
        "what earns more has the smaller advantage: their sign is turned round"
        if turned
        else "advantages are of other answers than the scores: rows were shifted, sorted or shuffled in between"
    )
    return fail(
        "advantages that go with the scores of their own answers",
        f"a correlation of {found:.2f}, median of {len(curve.values)} steps: {what}",
        headline="" if turned else "Advantages do not belong to the answers that earned them",
        details=drawn(run, CREDIT, "critic/score/mean", "critic/advantages/std"),
        evidence=(proof(CREDIT, f"{found:.3g}", curve.steps[0], curve.steps[-1]),),
        params={} if turned else {"rows": "rewards to advantages"},
    )


def _least(run: RunFacts) -> float:
    """What a healthy run has at least: a critic that explains most of the returns leaves little of the score."""
    explained = curve_of(run, "critic/vf_explained_var")
    best = max(explained.values) if explained is not None else 0.0
    return limit("credit_least") * math.sqrt(max(0.0, 1 - max(0.0, best)))


def _is_plain(run: RunFacts) -> bool:
    """Each token's advantage is the whole answer's: with lam or gamma below 1, most tokens hear little of the score.

    Nor are they where what a critic says differs many times as much as returns do.
    """
    explained = curve_of(run, "critic/vf_explained_var")
    if explained is not None and (median(explained.values) or 0.0) < -_WILD:
        return False
    return all((number_setting(run, f"algorithm.{name}") or 1.0) >= 1.0 for name in ("lam", "gamma"))


def truth_underpaid(run: RunFacts) -> Verdict | None:
    """Rules that give all to the ground truth, and ground truths that earned less when they were scored as answers."""
    due = _due(run)
    scored = [pair for one in value_or(run.audit, ()) for pair in one.truths]
    less = [(truth, reward) for truth, reward in scored if due is not None and reward < due - 1e-6]
    if due is None or not less:
        return None
    turned = all(abs(reward + due) < 1e-6 for _, reward in less)
    what = (
        "the sign of the reward is turned round"
        if turned
        else "what is scored is not the whole answer, or not held against this ground truth"
    )
    return fail(
        f"{due:g} for an answer that is the ground truth, as the rules say",
        f"{less[0][1]:.4g} for {less[0][0][:40]!r}, and less in {len(less)} of {len(scored)} scored as answers: {what}",
        headline="The ground truth itself does not earn all there is",
        details=tuple(f"{truth[:40]!r} earns {reward:.4g}" for truth, reward in less[:_SHOWN]),
        evidence=(evidence("run.audit.truths", less[0][1], "the ground truth as the answer"),),
        params={} if turned else {"scored": "the text that the reward function is given"},
    )


def _due(run: RunFacts) -> float | None:
    """What the ground truth earns as an answer, where all rules are of the kind that gives it everything."""
    rules = setting(run, "reward_model.rules")
    if not isinstance(rules, list | tuple) or not rules:
        return None
    total = 0.0
    for rule in cast("list[Any]", rules):
        if not isinstance(rule, Mapping):
            return None
        said = cast("Mapping[str, Any]", rule)
        if said.get("kind") not in _WHOLE or said.get("data_sources"):
            return None
        weight = said.get("weight")
        total += float(weight) if isinstance(weight, int | float) else 1.0
    return total


def outdone(run: RunFacts) -> Verdict | None:
    """Samples that equal their ground truth all earn less than the best of the others do."""
    rows = judged(samples_of(run))
    equal = [row for row in rows if row.response.strip() == row.ground_truth.strip()]
    if len(equal) < _ENOUGH or not expects_text(rows):
        return None
    best = max(row.reward for row in equal)
    above = [row for row in rows if row.reward > best + 1e-6 and row not in equal]
    if len(above) < max(_ENOUGH, len(equal) / 4):
        return None
    return (fail if _due(run) is not None else warn)(
        "no answer that earns more than the ground truth itself",
        f"{len(equal)} of {len(rows)} samples equal their ground truth and earn {best:.4g} at most; {len(above)} others"
        f" earn more, up to {max(row.reward for row in above):.4g}, {steps_words(rows[0].step, rows[-1].step)}",
        headline="Answers that equal the ground truth earn less than others",
        details=(*map(_told, (*equal[:2], *above[:2])), *drawn(run, "critic/score/mean")),
        evidence=(evidence("run.samples", f"{len(above)} above {best:.4g}", "samples and their ground truth"),),
        params={"scored": "the text that the reward function is given"},
    )


def _told(row: SampleRow) -> str:
    said, want = row.response.strip()[:40], row.ground_truth.strip()[:40]
    return f"step {row.step}: {said!r} for {want!r} earns {row.reward:.4g}"
