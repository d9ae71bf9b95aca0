"""RUN015: advantages are what their estimator makes of rewards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from rlcheck.check import Verdict, check, fail, info, passed, skip, unknown, warn
from rlcheck.checks.run.behaviour import REWARD
from rlcheck.checks.run.causes import DRIFT, NUMBERS
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, number_setting, proof, run_of, setting
from rlcheck.checks.run.groups import N
from rlcheck.checks.run.settings import override
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.measure.config.estimators import needs, scale
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import steps_words, value_at

_NAMES = ("critic/advantages/mean", "critic/advantages/std", "critic/advantages/max", "critic/advantages/min")
_NORM = "algorithm.norm_adv_by_std_in_grpo"
_SAME = 1e-6
_MOST = 0.5
_GAMMA, _RETURNS = "algorithm.gamma", "critic/returns/mean"
_LEAST_GAMMA, _MOST_TOLD = 0.9, 0.85
"""A discount by token below this is no usual one; returns below that share of the rewards show what it does."""


class Row(NamedTuple):
    """Advantages and rewards of one step; None for what the run does not say."""

    step: int
    mean: float
    std: float | None
    high: float
    low: float
    reward_span: float | None
    zero_groups: float | None


Rule = Callable[[Row], str]
"""What is wrong with a row, in words without numbers that change from step to step; "" if nothing is."""


@check("RUN015", "Advantages are normalised as their estimator says", needs=NEEDS, playbook="advantages-not-normalised",
       caused_by=(*NUMBERS, *DRIFT))  # fmt: skip
def advantages_are_normalised(facts: Facts) -> Verdict:
    """Advantages have the mean, spread and bounds that follow from the estimator in the config.

    What it does:
        Whitened ones (GAE, REINFORCE++) have mean 0 and standard deviation 1 over tokens; those of GRPO are within
        (n - 1) / sqrt(n) and have both signs; without the division by the spread they stay within the range of the
        rewards. Steps in which all rewards are equal are passed over. Whatever the estimator, they have both signs. A
        discount (gamma) that hides the reward from the first tokens is named.

    Why it matters:
        The size of advantages is the size of the step, and their differences are all that is learned from. Without a
        baseline every answer is pushed up, the bad ones as well.
    """
    run = run_of(facts)
    estimator = str(setting(run, "algorithm.adv_estimator") or "")
    rows = _rows(run)
    if rows is None:
        return lacking(run, _NAMES[2])
    if not rows:
        return skip("in no step do rewards differ")
    size = int(number_setting(run, N) or 0)
    kind = scale(estimator)
    if kind == "whitened":
        found = _judge(run, rows, _whitened, f"{estimator}: mean 0, standard deviation 1")
        return (_discounted(run) or found) if found.status == "pass" else found
    if kind == "grouped" and size > 1 and setting(run, _NORM) is not False:
        return _judge(run, rows, _grouped(size), f"{estimator} in groups of {size}: within {_bound(size):.3g}")
    if kind in ("grouped", "centred") and size > 1:
        found = _judge(
            run, rows, _centred(size), f"{estimator} in groups of {size}: centred, within the rewards' range"
        )
        return _left_out(run, rows) if found.status == "pass" and kind == "grouped" else found
    if (one_sided := _one_sided(run, rows)) is not None:
        return one_sided
    if not estimator:
        return unknown("the config of the run is not there: which estimator it has is not known")
    return skip(f"{estimator} with groups of {size or 'unknown size'}: nothing is known of its advantages")


def _rows(run: RunFacts) -> list[Row] | None:
    mean, std, high, low = (run.curves.get(name) for name in _NAMES)
    if high is None or low is None or mean is None or not high.values:
        return None
    best, worst = curve_of(run, "critic/score/max"), curve_of(run, "critic/score/min")
    zero = curve_of(run, "train/zero_advantage_groups")
    rows: list[Row] = []
    for step, top in zip(high.steps, high.values, strict=True):
        bottom, middle = value_at(low, step), value_at(mean, step)
        above, below = best and value_at(best, step), worst and value_at(worst, step)
        span = None if above is None or below is None else above - below
        # Equal rewards leave rounding, or the critic's own errors, and groups without a difference leave nothing.
        if bottom is None or middle is None or (span is not None and span <= _SAME) or (top == 0 and bottom == 0):
            continue
        rows.append(Row(step, middle, std and value_at(std, step), top, bottom, span, zero and value_at(zero, step)))
    return rows


def _whitened(row: Row) -> str:
    if abs(row.mean) > limit("whitened_mean"):
        return "their mean is not 0"
    if row.std is not None and row.std <= _SAME:
        return "all are equal, so that no answer counts as better than another"
    if row.std is not None:
        return "their standard deviation is not 1" if abs(row.std - 1) > limit("whitened_std") else ""
    # The variance of numbers between low < 0 and high > 0 with mean 0 is at most -low * high (Bhatia and Davis).
    return "they are too small for a standard deviation of 1" if -row.low * row.high < 1 - limit("whitened_std") else ""


def _bound(size: int) -> float:
    """The largest |A| in a group of SIZE: one answer against all others, with n - 1 in the standard deviation."""
    return (size - 1) / math.sqrt(size)


def _grouped(size: int) -> Rule:
    def judge(row: Row) -> str:
        if row.high <= 0 or row.low >= 0:
            return "all have one sign: no baseline was taken off"
        if max(row.high, -row.low) > _bound(size) * 1.01:
            return f"they exceed {_bound(size):.3g}, the most that a group of {size} can give"
        # Of a group with a difference, the mean square is (n - 1) / n, and the product of its extremes no less.
        if -row.low * row.high < (size - 1) / size * (1 - limit("whitened_std")):
            return "they are too small: they were not divided by the spread of their group"
        return "their mean is far from 0" if abs(row.mean) > limit("grouped_mean") else ""

    return judge


def _centred(size: int) -> Rule:
    def judge(row: Row) -> str:
        if row.high <= 0 or row.low >= 0:
            return "all have one sign: no baseline was taken off"
        most = math.inf if row.reward_span is None else row.reward_span * size / (size - 1) * 1.01
        return "they exceed the range of the rewards" if max(row.high, -row.low) > most else ""

    return judge


def _judge(run: RunFacts, rows: list[Row], rule: Rule, what: str) -> Verdict:
    wrong = [(row, words) for row in rows if (words := rule(row))]
    if len(wrong) < max(limit("constant_steps"), _MOST * len(rows)):
        return passed(f"{what}; {len(rows) - len(wrong)} of {len(rows)} steps are so", details=drawn(run, _NAMES[2]))
    first, words = wrong[0]
    last = wrong[-1][0].step
    return fail(
        f"advantages of {what}",
        f"{words}, {steps_words(first.step, last)}: {_numbers(first)} at step {first.step}",
        details=drawn(run, *_NAMES),
        evidence=(proof(_NAMES[2], _numbers(first), first.step, last),),
    )


def _numbers(row: Row) -> str:
    spread = "" if row.std is None else f"standard deviation {row.std:.3g}, "
    return f"mean {row.mean:.3g}, {spread}{row.low:.3g} to {row.high:.3g}"


def _one_sided(run: RunFacts, rows: list[Row]) -> Verdict | None:
    """Without a known estimator: whatever the baseline is, some answers are better than it and others worse."""
    # The baseline of ReMax, what the likeliest answer earns, may be 0 for long.
    if needs(str(setting(run, "algorithm.adv_estimator")), "greedy") or len(rows) < limit("steps_to_judge"):
        return None
    if not (all(r.low >= 0 for r in rows) or all(r.high <= 0 for r in rows)):
        return None
    sign = "below" if rows[0].low >= 0 else "above"
    words = f"in none of {len(rows)} steps is one {sign} 0, {steps_words(rows[0].step, rows[-1].step)}"
    return warn(
        "advantages of both signs, as any baseline gives",
        f"{words}: {_numbers(rows[0])} at step {rows[0].step}, as without a baseline",
        details=drawn(run, *_NAMES),
        evidence=(proof(_NAMES[3 if sign == "below" else 2], words, rows[0].step, rows[-1].step),),
    )


def _discounted(run: RunFacts) -> Verdict | None:
    """A discount that hides the reward at the end of an answer from its first tokens."""
    gamma, lengths = number_setting(run, _GAMMA), curve_of(run, "response_length/mean")
    told, paid = curve_of(run, _RETURNS), curve_of(run, "critic/rewards/mean", *REWARD[:1])
    if gamma is None or not 0 <= gamma < _LEAST_GAMMA or lengths is None or told is None or paid is None:
        return None
    tokens = max(lengths.values)
    share = gamma ** max(0.0, tokens - 1)
    below = [value < _MOST_TOLD * reward for step, value in zip(told.steps, told.values, strict=True)
             if (reward := value_at(paid, step)) is not None and reward > 0]  # fmt: skip
    if share >= _MOST or len(below) < limit("constant_steps") or sum(below) < 0.9 * len(below):
        return None
    words = f"{_GAMMA}={gamma:g}: the first of {tokens:.3g} tokens is told {share:.0%} of the reward of an answer"
    return warn(
        "returns as large as the rewards",
        f"{words}; returns of {told.values[-1]:.3g} for rewards of {paid.values[-1]:.3g}",
        details=drawn(run, _RETURNS, "critic/rewards/mean"),
        evidence=(proof(_RETURNS, words, told.steps[0], told.steps[-1]),),
        params={"undiscounted": given["override"]} if (given := override(run, _GAMMA, 1.0)) else {},
    )


def _left_out(run: RunFacts, rows: list[Row]) -> Verdict:
    """GRPO without the division by the spread: on purpose with Dr. GRPO's loss, else worth a word."""
    first, last = rows[0], rows[-1]
    more: dict[str, Any] = {"details": drawn(run, *_NAMES)}
    words = (
        f"advantages are centred and not divided by the spread of their group: {_numbers(first)} at step {first.step}"
    )
    summed = str(setting(run, "actor_rollout_ref.actor.loss_agg_mode") or "").startswith("seq-mean-token-sum")
    small = first.std is not None and not _MOST < first.std < 1 / _MOST
    if summed or not small:
        return info(f"{words} ({_NORM}=false)", **more)
    return warn(
        "advantages of about 1",
        f"{words} ({_NORM}=false): steps are as much smaller or larger as the rewards' spread is",
        evidence=(proof(_NAMES[1], _numbers(first), first.step, last.step),),
        params=override(run, _NORM, True),
        **more,
    )
