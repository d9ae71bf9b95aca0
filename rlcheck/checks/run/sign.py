"""RUN012: right answers earn more than wrong ones, and what earns more becomes likelier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, unknown, warn
from rlcheck.checks.run.behaviour import REWARD
from rlcheck.checks.run.causes import DRIFT, NUMBERS, STEPS, WORK
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, proof, run_of, samples_of, setting
from rlcheck.checks.run.credit import credit, outdone, truth_underpaid
from rlcheck.checks.run.likeness import Agreement, agreements, expects_text, in_place, is_letters, judged
from rlcheck.checks.run.trend import rank_correlation, rewards_of, rise, wobble
from rlcheck.checks.run.validation import validation, validation_rises
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts, SampleRow
from rlcheck.measure.config.estimators import needs
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import smooth, steps_words, window

_RIGHT = "rewards that rise with being right"
_LEARN = "a policy that learns what earns more"
_SKEWED = math.log(3)
_MIRRORED, _MIRROR_STEPS = 0.8, 5
_NO_RELATION = 0.15


class Mirror(NamedTuple):
    """In how many of the steps whose rewards are skewed the advantages are skewed the other way."""

    opposite: int
    steps: tuple[int, ...]


@check("RUN012", "Right answers earn more, and become likelier", needs=NEEDS, playbook="reward-sign",
       caused_by=(*NUMBERS, *DRIFT, *STEPS, *WORK, "RUN011", "RUN013", "RUN015"),
       problem="Right answers earn less, or become less likely")  # fmt: skip
def right_answers_earn_more(facts: Facts) -> Verdict:
    """The reward, the advantages and the loss have the right sign.

    What it does:
        Holds samples against their ground truth: what is nearer to it must not earn less. Compares the shape of
        advantages with that of rewards, which one sign turns round. Looks whether the reward falls from the first step
        on while it is optimised. Negative weights of rewards in the config are named. Where the run logs it, an
        answer's advantage must go with its own score, and the ground truth must earn what its rules give.

    Why it matters:
        The run optimises as well as ever, towards the wrong answers: with a sign turned round, or with rewards of other
        rows, all curves of the optimizer look healthy.
    """
    run = run_of(facts)
    known = credit(facts) or truth_underpaid(run)
    if known is not None:
        return known
    rows = judged(samples_of(run))
    turned = [one for part in _windows(rows) if (one := _turned(part)) is not None]
    if turned:
        # The clearest, and of those that are about as clear the one over the most samples.
        return _fail_by_samples(run, *min(turned, key=lambda one: (round(one[0].correlation, 1), -len(one[1]))))
    mirror = _mirror(run)
    if mirror is not None and mirror.opposite >= _MIRRORED * len(mirror.steps):
        if _learns(run, mirror.steps[0]):
            return passed(f"the reward rises from step {mirror.steps[0]} on, in spite of advantages of another shape")
        return _fail_by_advantages(run, mirror)
    other = outdone(run) or _opposed(run) or _falls(run)
    if other is not None:
        return other
    found = agreements(rows) if len(rows) >= limit("sign_rows") else ()
    if _is_unrelated(run, rows, found):
        return _warn_unrelated(run, rows, found)
    best = max(found, key=lambda one: one.correlation, default=None)
    if best is not None and best.correlation >= _NO_RELATION:
        return passed(f"{len(rows)} samples: the reward goes with {best.measure}, correlation {best.correlation:.2f}")
    if mirror is not None:
        return passed(f"advantages are skewed as rewards are in {len(mirror.steps) - mirror.opposite} steps")
    rewards = rewards_of(run)
    if rewards is None:
        return lacking(run, *REWARD)
    if rewards.span <= 0:
        return skip("all answers earn the same")
    if best is not None:
        return unknown(f"{len(rows)} samples: the reward goes with no likeness to the ground truth that can be seen")
    return unknown("no samples with a ground truth, and no advantages whose shape would show it")


def _windows(rows: Sequence[SampleRow]) -> tuple[Sequence[SampleRow], ...]:
    """All ROWS, their halves and their last third: a sign may be turned round in the middle of a run."""
    half, third = len(rows) // 2, len(rows) // 3
    return rows, rows[:half], rows[half:], rows[-third:] if third else ()


def _turned(rows: Sequence[SampleRow]) -> tuple[Agreement, Sequence[SampleRow]] | None:
    """The clearest sign that likeness is punished; None if another measure says that it is rewarded."""
    if len(rows) < limit("sign_rows"):
        return None
    found, text = agreements(rows), expects_text(rows)
    worst = min(found, key=lambda one: one.t, default=None)
    if worst is None or worst.t > -limit("sign_t") or any(one.t > limit("sign_t") / 2 for one in found):
        return None
    # Letters that agree by chance say little about an answer that says more than its ground truth.
    most = limit("sign_correlation") * (2 if is_letters(worst) and not text else 1)
    return (worst, rows) if worst.correlation <= most else None


def _is_unrelated(run: RunFacts, rows: Sequence[SampleRow], found: tuple[Agreement, ...]) -> bool:
    """Many samples, a ground truth that is the answer itself, and a reward that goes with nothing of it."""
    if len(rows) < limit("unrelated_rows") or not found or not expects_text(rows):
        return False
    if setting(run, "reward_model.enable") is True:
        return False
    length = rank_correlation([float(len(row.response)) for row in rows], [row.reward for row in rows]) or 0.0
    return (
        all(abs(one.t) < 3 and abs(one.correlation) < _NO_RELATION for one in found) and abs(length) < 2 * _NO_RELATION
    )


def _warn_unrelated(run: RunFacts, rows: Sequence[SampleRow], found: tuple[Agreement, ...]) -> Verdict:
    best = max(found, key=lambda one: abs(one.correlation))
    words = f"a correlation of {best.correlation:.2f} with {best.measure}, {len(rows)} samples"
    ordered = sorted(rows, key=lambda row: in_place(row))
    return warn(
        _RIGHT,
        f"{words}: the reward has nothing to do with the ground truth",
        details=tuple(_shown(row) for row in (*ordered[-2:], ordered[0])),
        evidence=(evidence("run.samples", words, "rewards and ground truths of samples"),),
    )


def _fail_by_samples(run: RunFacts, turned: Agreement, rows: Sequence[SampleRow]) -> Verdict:
    first, last = rows[0].step, rows[-1].step
    ordered = sorted(rows, key=lambda row: (in_place(row), -row.reward))
    key, value = _negative_weight(run)
    return fail(
        _RIGHT,
        f"the contrary: correlation {turned.correlation:.2f} with {turned.measure}, {turned.rows} samples of "
        f"{steps_words(first, last)}",
        details=(*(_shown(row) for row in (ordered[-1], ordered[0])), *drawn(run, *REWARD, "val/reward/mean")),
        evidence=(evidence("run.samples", f"{turned.correlation:.2f}", "rewards and ground truths of samples"),
                  *((evidence(f"run.settings.{key}", value, "the run's config"),) if key else ())),
        params={"override": f"{key}={value.lstrip('-')}"} if key else {},
    )  # fmt: skip


def _shown(row: SampleRow) -> str:
    said, want = " ".join(row.response.split())[:40], " ".join(row.ground_truth.split())[:40]
    return f"step {row.step}: {said!r} where {want!r} is right earns {row.reward:.4g}"


def _negative_weight(run: RunFacts) -> tuple[str, str]:
    """A weight of rewards that is below 0 in the config, and its value; empty if there is none."""
    for key in ("custom_reward_function.weight", "reward_model.weight"):
        value = setting(run, key)
        if isinstance(value, int | float) and value < 0:
            return key, str(value)
    rules = setting(run, "reward_model.rules")
    for place, rule in enumerate(cast("list[Any]", rules) if isinstance(rules, list | tuple) else []):
        weight: Any = cast("Mapping[str, Any]", rule).get("weight") if isinstance(rule, Mapping) else None
        if isinstance(weight, int | float) and weight < 0:
            return f"reward_model.rules.{place}.weight", str(weight)
    return "", ""


def _learns(run: RunFacts, since: int) -> bool:
    """Whether the reward rises from the step SINCE on: a policy with the wrong sign unlearns what earns more."""
    reward = curve_of(run, *REWARD)
    moved = rise(window(reward, since, run.last_step)) if reward is not None else None
    return moved is not None and moved.sigmas >= limit("sigmas")


def _mirror(run: RunFacts) -> Mirror | None:
    """Steps in which the best reward is much further from the mean than the worst, or the other way round.

    Centring and scaling keep such a skew, in a group and over a batch; turning the sign round turns it round. None
    with fewer steps than a judgement needs. Left out: estimators whose baseline is no mean, and steps in which what the
    critic says differs more than rewards do, as at its start.
    """
    if needs(str(setting(run, "algorithm.adv_estimator")), "greedy"):
        return None
    wide = _wide_values(run)
    names = ("critic/score/mean", "critic/score/max", "critic/score/min", "critic/advantages/max",
             "critic/advantages/min")  # fmt: skip
    curves = [run.curves.get(name, Curve()) for name in names]
    tables = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
    steps: list[int] = []
    opposite = 0
    for step in sorted(step for step in tables[0] if all(step in table for table in tables)):
        mean, high, low, best, worst = (table[step] for table in tables)
        if min(high - mean, mean - low) <= 0 or best <= 0 or worst >= 0 or wide.get(step, 0.0) > (high - low) / 2:
            continue
        rewards = math.log(high - mean) - math.log(mean - low)
        advantages = math.log(best) - math.log(-worst)
        if abs(rewards) >= _SKEWED and abs(advantages) >= _SKEWED / 3:
            steps.append(step)
            opposite += rewards * advantages < 0
    return Mirror(opposite, tuple(steps)) if len(steps) >= _MIRROR_STEPS else None


def _wide_values(run: RunFacts) -> dict[int, float]:
    """By step, between the critic's lowest and highest value."""
    high, low = run.curves.get("critic/values/max", Curve()), run.curves.get("critic/values/min", Curve())
    below = dict(zip(low.steps, low.values, strict=True))
    return {s: value - below[s] for s, value in zip(high.steps, high.values, strict=True) if s in below}


def _fail_by_advantages(run: RunFacts, mirror: Mirror) -> Verdict:
    first, last = mirror.steps[0], mirror.steps[-1]
    return fail(
        "advantages skewed as the rewards are",
        f"skewed the other way in {mirror.opposite} of {len(mirror.steps)} steps that are clear: their sign is turned "
        f"round, {steps_words(first, last)}",
        details=drawn(run, *REWARD, "critic/score/max", "critic/score/min", "critic/advantages/max",
                      "critic/advantages/min"),
        evidence=(proof("critic/advantages/max", f"opposite skew in {mirror.opposite} steps", first, last),),
    )  # fmt: skip


def _opposed(run: RunFacts) -> Verdict | None:
    """No answer ever earned more than 0, and validation pays for answers, or the config has a negative weight."""
    rewards, val, (key, value) = rewards_of(run), validation(run), _negative_weight(run)
    if rewards is None or rewards.high > 0 or rewards.low >= 0:
        return None
    if not key and (val is None or min(val[1].values) < 0 or max(val[1].values) <= 0):
        return None
    why = f"{key} is {value}" if key else f"validation earns {max(val[1].values):.4g}" if val else ""
    return fail(
        _RIGHT,
        f"rewards of {rewards.low:.4g} to {rewards.high:.4g}, none above 0, while {why}",
        details=drawn(run, *REWARD, "critic/score/max", "val/reward/mean"),
        evidence=(proof("critic/score/max", f"{rewards.high:.4g}", run.first_step, run.last_step),),
        params={"override": f"{key}={value.lstrip('-')}"} if key else {},
    )


def _falls(run: RunFacts) -> Verdict | None:
    """A reward that falls from the first step on, to half and less, and never rises in between."""
    rewards = rewards_of(run)
    if rewards is None or len(rewards.mean.values) < limit("steps_to_judge") or run.first_step > 1:
        return None
    if setting(run, "data.shuffle") is False or validation_rises(run):
        return None  # rows in an order of their own may simply get harder
    mean = rewards.mean
    moved = rise(mean)
    start = mean.values[0]
    floor = min(rewards.low, min(mean.values))
    if moved is None or moved.sigmas > -limit("sigmas") or moved.last > start - (start - floor) / 2:
        return None
    spread = wobble(mean)
    if start - moved.last < limit("sigmas") * spread or max(smooth(mean, 2).values) > start + 3 * spread:
        return None
    return fail(
        _LEARN,
        f"the reward falls from the first step on, {start:.4g} to {moved.last:.4g}, "
        f"{steps_words(mean.steps[0], mean.steps[-1])}: what earns less becomes likelier",
        details=drawn(run, *REWARD, "val/reward/mean", "actor/ppo_kl", "actor/pg_loss"),
        evidence=(proof(REWARD[0], f"{start:.4g} to {moved.last:.4g}", mean.steps[0], mean.steps[-1]),),
    )
