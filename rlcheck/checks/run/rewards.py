"""RUN011, RUN016-RUN018: rewards differ between answers, rise, stay, and leave something to learn."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlcheck.check import Verdict, check, fail, info, passed, skip, warn
from rlcheck.checks.run.behaviour import REWARD, solved
from rlcheck.checks.run.causes import DRIFT, ENDINGS, NUMBERS, ROOTS, STEPS
from rlcheck.checks.run.common import (
    NEEDS,
    curve_of,
    drawn,
    lacking,
    number_setting,
    proof,
    run_of,
    samples_of,
    too_short,
)
from rlcheck.checks.run.settings import LR, override
from rlcheck.checks.run.trend import Rewards, rewards_of, rise, wobble
from rlcheck.checks.run.validation import validation_rises
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import median, smooth, steps_words, value_at

_SCORES = ("critic/score/mean", "critic/score/max", "critic/score/min")
_EQUAL = 1e-6
_EARLY = 3
_NOTHING_LEFT = 0.95
"""Of the way from the worst to the best reward; one answer in twenty is left to be made better."""


@check("RUN011", "Rewards differ between answers", needs=NEEDS, playbook="rewards-all-alike",
       caused_by=(*NUMBERS, *DRIFT, *STEPS, *ENDINGS, "RUN023"),
       problem="Rewards do not differ between answers")  # fmt: skip
def rewards_differ(facts: Facts) -> Verdict:
    """Not every answer earns the same.

    What it does:
        Compares the lowest and the highest reward of each step (or its spread, or the mean alone), and shows answers
        that equal their ground truth and what they earned.

    Why it matters:
        An advantage is a difference between rewards. With equal rewards all advantages are zero, or noise that is
        scaled up, and the policy learns nothing.
    """
    run = run_of(facts)
    mean = curve_of(run, *REWARD)
    if mean is None:
        return lacking(run, *REWARD)
    alike = _alike(run, mean)
    if alike is None:
        return passed(f"the mean reward differs from step to step; {steps_words(mean.steps[0], mean.steps[-1])}")
    return _judge_alike(run, mean, alike)


def _judge_alike(run: RunFacts, mean: Curve, alike: list[tuple[int, bool]]) -> Verdict:
    equal = [step for step, same in alike if same]
    if not equal:
        return passed(f"in each of {len(alike)} steps some answers earn more than others")
    last = next((place for place in range(len(alike), 0, -1) if not alike[place - 1][1]), 0)
    first, words = alike[last][0] if last < len(alike) else 0, f"{len(equal)} of {len(alike)} steps"
    tail = len(alike) - last
    if tail >= limit("constant_steps") and not solved(run):
        value = value_at(mean, first) or 0.0
        found = f"every answer earns {value:.4g}, {steps_words(first, alike[-1][0])}{', not before' if last else ''}"
        return fail("rewards that differ between answers", found, **_more(run, first, alike[-1][0], value))
    if tail == len(alike):
        more = _more(run, first, alike[-1][0], mean.values[0])
        return warn("rewards that differ between answers", f"every answer earns the same in {words}", **more)
    if solved(run) or not alike[0][1]:
        return passed(f"all answers of a step earn the same in {words}, not from the first on")
    return info(f"all answers of a step earn the same in {words}", details=drawn(run, *_SCORES))


def _more(run: RunFacts, first: int, last: int, value: float) -> dict[str, Any]:
    return {
        "details": (*drawn(run, *_SCORES), *_right_answers(run)),
        "evidence": (proof("critic/score/max", f"{value:.4g}, as critic/score/min", first, last),),
    }


def _alike(run: RunFacts, mean: Curve) -> list[tuple[int, bool]] | None:
    """For each step whether all rewards are equal; None where only means are there, and they differ."""
    high, low = run.curves.get(_SCORES[1]), run.curves.get(_SCORES[2])
    if high is not None and low is not None and high.values and high.steps == low.steps:
        return [(step, _same(a, b)) for step, a, b in zip(high.steps, high.values, low.values, strict=True)]
    spread = curve_of(run, "critic/score/std", "critic/rewards/std")
    if spread is not None:
        return [(step, abs(value) <= _EQUAL) for step, value in zip(spread.steps, spread.values, strict=True)]
    if len(mean.values) > 1 and all(_same(value, mean.values[0]) for value in mean.values):
        return [(step, True) for step in mean.steps]
    return None


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= _EQUAL * max(1.0, abs(one), abs(other))


def _right_answers(run: RunFacts) -> tuple[str, ...]:
    """What answers that are exactly the ground truth earned."""
    rows = [row for row in samples_of(run) if row.ground_truth and row.response.strip() == row.ground_truth.strip()]
    return tuple(
        f"step {row.step}: the answer {row.response.strip()[:40]!r} equals its ground truth and earns {row.reward:.4g}"
        for row in rows[:2]
    )


@check("RUN016", "The reward changes during the run", needs=NEEDS, playbook="reward-stands-still",
       caused_by=(*ROOTS, "RUN014", "RUN018", "RUN032", "RUN035", "RUN037", "RUN038", "RUN039"),
       problem="The reward stands still")  # fmt: skip
def reward_moves(facts: Facts) -> Verdict:
    """Over the run, the reward changes by more than its noise.

    What it does:
        Compares the first and the last fifth of the run, in units of the noise from step to step and of the distance
        between the best and the worst answer.

    Why it matters:
        A run whose reward stands still for long spends its hours on nothing; the cause is nearly always visible in the
        first steps.
    """
    run = run_of(facts)
    rewards = rewards_of(run)
    if rewards is None:
        return lacking(run, *REWARD)
    mean = rewards.mean
    if len(mean.values) < limit("reward_flat_steps"):
        return too_short(mean, int(limit("reward_flat_steps")))
    moved = rise(mean)
    if moved is None or _is_saturated(rewards, moved.last):
        return skip("the reward is at its best already")
    words = f"{moved.first:.4g} at first, {moved.last:.4g} at last"
    step = limit("reward_flat_share") * rewards.span
    if abs(moved.sigmas) >= limit("sigmas") / 2 and abs(moved.change) > step:
        return passed(f"the mean reward goes from {words}")
    if abs(max(smooth(mean, 2).values) - moved.first) > max(step, limit("sigmas") * wobble(mean)):
        return passed(f"the mean reward moved in between: {words}")
    return warn(
        "a reward that moves",
        f"{words}, {steps_words(mean.steps[0], mean.steps[-1])}",
        details=drawn(run, *REWARD, "actor/ppo_kl", "train/zero_advantage_groups"),
        evidence=(proof(REWARD[0], f"change of {moved.change:.2g}", mean.steps[0], mean.steps[-1]),),
    )


def _is_saturated(rewards: Rewards, level: float) -> bool:
    """LEVEL is as good as the best that any answer earned, while others earned less."""
    return rewards.span > 0 and rewards.high - level <= (1 - limit("saturated_share")) * rewards.span


@check("RUN017", "The reward does not collapse", needs=NEEDS, playbook="reward-collapse", caused_by=ROOTS)
def reward_stays(facts: Facts) -> Verdict:
    """What the policy has learnt to earn, it goes on to earn.

    What it does:
        Compares the end of the run with the best it reached, noise taken out.

    Why it matters:
        A policy that has collapsed does not come back: it no longer samples anything from which it could learn. Every
        hour after that is lost, and the checkpoint to keep is one from before.
    """
    run = run_of(facts)
    rewards = rewards_of(run)
    if rewards is None:
        return lacking(run, *REWARD)
    mean = rewards.mean
    if len(mean.values) < limit("steps_to_judge"):
        return too_short(mean, int(limit("steps_to_judge")))
    fall = _fall(rewards)
    lost, noise = fall.peak - fall.end, limit("sigmas") * wobble(mean)
    if lost <= max(noise, limit("reward_flat_share") * rewards.span):
        return passed(f"it ends at {fall.end:.4g}, its best was {fall.peak:.4g}")
    words, rate = f"{fall.peak:.4g} at step {fall.top}, {fall.end:.4g} at the end", number_setting(run, LR)
    more: dict[str, Any] = {
        "details": drawn(run, *REWARD, "actor/ppo_kl", "actor/grad_norm", "actor/entropy", "response_length/mean"),
        "evidence": (proof(REWARD[0], words, fall.top, mean.steps[-1]),),
        "params": {"step": str(fall.top), **(override(run, LR, rate / 2) if rate else {})},
    }
    if not validation_rises(run):
        if fall.since is not None:
            return fail("a reward that stays", f"{words}: half of it is lost from step {fall.since} on", **more)
        # Where the worst answers earn far below zero, half of the way down is further than a policy ever falls.
        gained = fall.peak - fall.start
        if fall.end <= fall.start - noise or (gained > noise and fall.end - fall.start < gained / 5):
            return fail("a reward that stays", f"{words}: all that was gained since the start is lost", **more)
    if fall.share < limit("collapse_share") / 2:
        return passed(f"it ends at {fall.end:.4g}, its best was {fall.peak:.4g}")
    return warn("a reward that stays", f"{words}, {fall.share:.0%} of it lost", headline="The reward falls", **more)


class Fall(NamedTuple):
    """From the best of a reward (at step `top`) to its end. `share`: of what it earned above the worst answer.
    `since`: from where half of that and more is lost; None if it is not."""

    start: float
    peak: float
    top: int
    end: float
    share: float
    since: int | None


def _fall(rewards: Rewards) -> Fall:
    mean = rewards.mean
    calm = smooth(mean, 2)
    top = max(range(len(calm.values)), key=calm.values.__getitem__)
    start, end = (median(part) or 0.0 for part in (mean.values[:3], mean.values[-max(3, len(mean.values) // 10) :]))
    peak = calm.values[top]
    height = peak - min(rewards.low, end)
    share = (peak - end) / height if height > 0 else 0.0
    low = peak - limit("collapse_share") * height
    after = zip(calm.steps[top:], calm.values[top:], strict=True)
    since = next((step for step, value in after if value <= low), mean.steps[-1])
    return Fall(start, peak, mean.steps[top], end, share, since if share >= limit("collapse_share") else None)


@check("RUN018", "The task leaves something to learn", needs=NEEDS, playbook="reward-saturated", caused_by=("RUN011",))
def not_saturated(facts: Facts) -> Verdict:
    """The reward is not at its best from the first step on.

    What it does:
        Compares the mean reward of the first steps with the best that any answer earned.

    Why it matters:
        Where nearly all answers earn the most from the start, groups have no advantage: either the task is solved
        already, or the reward gives its points for anything.
    """
    run = run_of(facts)
    rewards = rewards_of(run)
    if rewards is None:
        return lacking(run, *REWARD)
    if rewards.span <= _EQUAL:
        return skip("all answers earn the same")
    if run.first_step > 1:
        return skip(f"the run's first steps are not there: it begins at step {run.first_step}")
    if curve_of(run, _SCORES[1]) is None or len(rewards.mean.values) < _EARLY:
        return skip("too little to judge: the best reward of an answer, and three steps")
    start = median(rewards.mean.values[:_EARLY]) or 0.0
    share = (start - rewards.low) / rewards.span
    words = f"mean reward {start:.4g} of {rewards.high:.4g} in the first {_EARLY} steps"
    if share < _NOTHING_LEFT:
        return passed(words)
    return warn(
        "answers that could be better",
        f"{words}: {share:.0%} of the way",
        details=drawn(run, *_SCORES, "train/zero_advantage_groups"),
        evidence=(proof(REWARD[0], words, run.first_step, rewards.mean.steps[_EARLY - 1]),),
    )
