"""RUN013, RUN014: the answers to one prompt differ, and so do their rewards."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.checks.run.behaviour import ENTROPY, REWARD
from rlcheck.checks.run.causes import NUMBERS
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, number_setting, proof, run_of, samples_of
from rlcheck.checks.run.repeats import repeated
from rlcheck.checks.run.settings import override
from rlcheck.checks.run.trend import rewards_of, wobble
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts, SampleRow
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import steps_words, value_at

N = "actor_rollout_ref.rollout.n"
_RATIO, _EXPECTED = "response/duplicate_ratio", "response/duplicate_ratio_expected"
_ZERO = "train/zero_advantage_groups"
_ADVANTAGES = ("critic/advantages/max", "critic/advantages/min")
_MOSTLY = 0.9
_DIFFER = "answers to one prompt that are drawn independently"
_UNLIKELY = math.log(1e4)
"""Entropy times length, in nats, from which two equal answers are no chance."""
_START = 5
_RARE = 0.02


class Excess(NamedTuple):
    """Equal answers beyond what the probabilities give: medians over the steps that can show it."""

    found: float
    expected: float
    difference: float
    noise: float
    steps: tuple[int, ...]


@check("RUN013", "Answers to one prompt are drawn independently", needs=NEEDS, playbook="identical-samples",
       caused_by=("DRF005",))  # fmt: skip
def answers_are_independent(facts: Facts) -> Verdict:
    """Equal answers to one prompt are as rare as the policy's probabilities say.

    What it does:
        Compares the share of pairs of answers that are the same with the probability of the answers, over the steps in
        which that is small. Without these metrics it looks at samples: long answers that are the same, word for word,
        while the entropy says that they cannot be. Fails, too, when samples of equal prompts repeat those of the step
        before, each at its own place.

    Why it matters:
        Two samples that share a random stream are one sample: the group is smaller than it says, its mean and spread
        are wrong, and equal rewards in a group teach nothing.
    """
    run = run_of(facts)
    size = number_setting(run, N)
    if (again := repeated(run)) is not None:
        return again
    if size == 1:
        return skip("one answer to each prompt")
    if curve_of(run, _RATIO) is None:
        return _by_samples(run)
    excess = _excess(run)
    if excess is None:
        return unknown("the probability of the answers is not there, or too high in every step to tell")
    share = "all" if excess.found >= 1 else f"{100 * excess.found:.3g} % of"
    words = f"{share} pairs of answers to one prompt are the same, {100 * excess.expected:.2g} % would be by chance"
    first, last = excess.steps[0], excess.steps[-1]
    pair = 1 / math.comb(int(size), 2) if size else 1.0
    enough = max(4 * excess.noise / math.sqrt(len(excess.steps)), min(0.01, pair / 2))
    if excess.difference <= enough or excess.found <= limit("duplicate_factor") * excess.expected:
        return passed(f"{words}, {steps_words(first, last)}")
    return fail(
        _DIFFER,
        f"{words}, {steps_words(first, last)}",
        details=drawn(run, _RATIO, _EXPECTED, *ENTROPY[:1]),
        evidence=(proof(_RATIO, f"{excess.found:.4g}, expected {excess.expected:.4g}", first, last),),
    )


def _excess(run: RunFacts) -> Excess | None:
    found, expected = run.curves[_RATIO], run.curves.get(_EXPECTED, Curve())
    pairs = [
        (step, value, chance)
        for step, value in zip(found.steps, found.values, strict=True)
        if (chance := value_at(expected, step)) is not None and chance <= limit("duplicate_expected")
    ]
    if not pairs:
        return None
    steps = tuple(step for step, _, _ in pairs)
    beyond = [value - chance for _, value, chance in pairs]
    return Excess(median(value for _, value, _ in pairs), median(chance for _, _, chance in pairs), median(beyond),
                  wobble(Curve(steps=steps, values=tuple(beyond))), steps)  # fmt: skip


def _by_samples(run: RunFacts) -> Verdict:
    """Pairs of samples of one prompt and step that are the same though they are long and the entropy is high."""
    entropy = curve_of(run, *ENTROPY)
    groups = [group for group in _groups(samples_of(run)) if len(group) > 1]
    if entropy is None or not groups:
        return unknown(f"the run does not say: {_RATIO} is not among its metrics, nor samples of one prompt")
    same: list[SampleRow] = []
    judged = 0
    for one, other in (pair for group in groups for pair in combinations(group, 2)):
        level = value_at(entropy, one.step)
        if level is None or level * max(0, one.length) < _UNLIKELY:
            continue
        judged += 1
        same += [one] if one.response == other.response else []
    if not judged:
        return unknown("answers are too short, or too certain, to tell from samples whether they are independent")
    steps = sorted({row.step for row in same})
    if len(same) < max(3, _RARE * judged) or len(steps) < 2:
        return passed(f"{judged} pairs of samples of one prompt, {len(same)} the same")
    return fail(
        _DIFFER,
        f"{len(same)} of {judged} pairs of samples are the same, word for word, {steps_words(steps[0], steps[-1])}",
        details=(f"step {same[0].step}: {' '.join(same[0].response.split())[:100]!r} twice", *drawn(run, *ENTROPY[:1])),
        evidence=(evidence("run.samples", f"{len(same)} equal pairs", "samples of one prompt and step"),),
    )


def _groups(rows: Iterable[SampleRow]) -> list[list[SampleRow]]:
    found: dict[tuple[int, str], list[SampleRow]] = defaultdict(list)
    for row in rows:
        found[row.step, row.prompt].append(row)
    return list(found.values())


@check("RUN014", "Rewards differ within groups", needs=NEEDS, playbook="groups-without-signal",
       caused_by=(*NUMBERS, "RUN011", "RUN013", "RUN018", "RUN034", "RUN017", "RUN012"))  # fmt: skip
def groups_have_signal(facts: Facts) -> Verdict:
    """Most prompts get answers of different rewards.

    What it does:
        Reads the share of prompts all of whose answers earn the same, at the start and at the end. Where the run does
        not log it, advantages that are all 0 say the same.

    Why it matters:
        Such a group has advantages of zero: its generation is paid for and teaches nothing. With few groups left, the
        gradient is noise.
    """
    run = run_of(facts)
    size = number_setting(run, N)
    if size == 1:
        return skip("one answer to each prompt: there are no groups")
    zero = curve_of(run, _ZERO)
    if zero is None:
        return _by_advantages(run, int(size) if size else 0)
    tail = max(_START, len(zero.values) // 5)
    start, end = median(zero.values[:_START]), median(zero.values[-tail:])
    words = f"{start:.0%} of prompts with answers that all earn the same at first, {end:.0%} at last"
    level = max(start, end)
    if level < limit("zero_groups_warn") or len(zero.values) < 2:
        return passed(words)
    more = _more(run, zero, words, int(size) if size else 0)
    if start < limit("zero_groups_warn") and _near_best(run):
        return info(f"{words}: nearly all answers earn the best there is, and nothing is left to learn",
                    details=more["details"])  # fmt: skip
    judge = fail if min(start, end) >= limit("zero_groups_fail") else warn
    return judge("groups whose rewards differ", words, **more)


def _by_advantages(run: RunFacts, size: int) -> Verdict:
    """Without the share of such groups: advantages of which none differs from 0 come from nothing else."""
    high, low = curve_of(run, *_ADVANTAGES[:1]), curve_of(run, *_ADVANTAGES[1:])
    if high is None or low is None or high.steps != low.steps:
        return lacking(run, _ZERO)
    none = [step for step, top, bottom in zip(high.steps, high.values, low.values, strict=True) if top == bottom == 0]
    if len(none) < max(limit("constant_steps"), _MOSTLY * len(high.steps)) or _near_best(run):
        return unknown(f"the run does not say: {_ZERO} is not among its metrics")
    words = f"every advantage is 0 in {len(none)} of {len(high.steps)} steps: all answers to a prompt earn the same"
    rewards = rewards_of(run)
    differ = rewards is not None and rewards.span > 0
    hint = ("rewards differ from prompt to prompt: are the answers to one prompt drawn, or one and the same?",)
    return fail("groups whose rewards differ", words, **_more(run, high, words, size, hint if differ else ()))


def _more(run: RunFacts, zero: Curve, words: str, size: int, more: tuple[str, ...] = ()) -> dict[str, Any]:
    known = _ZERO if _ZERO in run.curves else _ADVANTAGES[0]
    return {
        "details": (*more, *drawn(run, known, *REWARD[:1], *ENTROPY[:1])),
        "evidence": (proof(known, words, zero.steps[0], zero.steps[-1]),),
        "params": override(run, N, 2 * size) if size else {},
    }


def _near_best(run: RunFacts) -> bool:
    rewards = rewards_of(run)
    if rewards is None or rewards.span <= 0:
        return False
    return rewards.high - median(rewards.mean.values[-_START:]) <= (1 - limit("zero_groups_warn")) * rewards.span
