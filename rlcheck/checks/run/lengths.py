"""RUN022-RUN024: answers end by themselves, are not cut, and keep a length."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.checks.run.behaviour import NEARBY, REWARD, around
from rlcheck.checks.run.causes import DRIFT, NUMBERS, ROOTS, STEPS
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, number_setting, proof, run_of, setting
from rlcheck.checks.run.endings import (
    CLIPPED,
    LIMIT,
    LONGEST,
    MEAN,
    SHORTEST,
    Bound,
    all_at_limit,
    bound_of,
    cost_of,
    fit_of,
    is_wall,
    share_at_limit,
    with_length,
)
from rlcheck.checks.run.settings import kind_of_model, override
from rlcheck.checks.run.trend import rewards_of, rise
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import charted, steps_words, window

_IGNORE = "actor_rollout_ref.rollout.ignore_eos"
_LEAST_TOKENS = "actor_rollout_ref.rollout.min_tokens"
_PROMPT, _WHOLE_LENGTH = "data.max_prompt_length", "actor_rollout_ref.rollout.max_model_len"
_TRUNCATED = "response/truncated_ratio"
_ENDS = "answers that end by themselves"
_WHOLE = "room for whole answers"
_NEAR_BEST = 0.2
_ENDED, _EARLIER = 0.05, 3
"""The least share of answers that end by themselves, in that many steps before none does any more."""
_SHORT, _USUAL_LIMIT = 64, 512
"""Tokens: a limit that holds a sentence or two, and verl's default."""
_TINY = 32
"""Tokens: an answer to a limit below this often has just the length that is right."""


@check("RUN022", "Answers end by themselves", needs=NEEDS, playbook="answers-never-end",
       problem="Answers do not end by themselves")  # fmt: skip
def answers_end(facts: Facts) -> Verdict:
    """Some answers of each step are shorter than the limit.

    What it does:
        Looks for steps in which every single answer is as long as allowed, from the first on or from one step to the
        next, and for settings that make it so.

    Why it matters:
        The token that ends an answer is never sampled, or the engine does not stop at it: what follows the answer is
        scored and learnt from as well, and every answer costs the longest time there is.
    """
    run = run_of(facts)
    bound, (key, value) = bound_of(run), _kept_from_ending(run)
    steps = all_at_limit(run, bound) if bound is not None else []
    if not steps or bound is None:
        return _by_setting(run, key, value) if key else lacking(run, SHORTEST, CLIPPED)
    long = [step for step, all_long in steps if all_long]
    few = limit("constant_steps")
    if len(steps) < few and not key:
        return skip(f"{len(steps)} steps, too few to judge ({few:.0f} are)")
    ended = len(steps) - len(long)
    if ended > 0.05 * len(steps) or not all(all_long for _, all_long in steps[: int(few)]):
        return _ends_later(run, bound, steps)
    fit = fit_of(run, bound)
    if fit is not None and fit.sure and not fit.whole and not key:
        return skip(f"all answers reach the limit of {bound.tokens:.0f} tokens, which is shorter than what is right")
    words = f"every answer has {bound.tokens:.0f} tokens, the limit, {steps_words(long[0], long[-1])}"
    # Without a limit in words or a share at it, answers of one length may be answers to questions that are all alike;
    # and answers that earn the most may have learnt to fill their length.
    told = bool(key) or (bool(bound.stated or curve_of(run, CLIPPED)) and not _earns_the_most(run))
    judge = fail if told else warn
    return judge(
        _ENDS,
        f"{words}{f' ({key}={value})' if key else ''}",
        details=(*_goes_on(run), *drawn(run, SHORTEST, CLIPPED, *REWARD[:1])),
        evidence=(proof(SHORTEST, words, long[0], long[-1]), *_setting_evidence(key, value)),
        params=_release(run, key) if key else _more_room(run, bound),
    )


def _more_room(run: RunFacts, bound: Bound) -> dict[str, str]:
    """A usual limit in place of one that hardly any answer fits in; a toy's answers are as short as its limit."""
    if bound.tokens > _SHORT or kind_of_model(run) == "tiny" or _goes_on(run):
        return {}
    room = override(run, LIMIT, _USUAL_LIMIT)
    return {"tokens": f"{bound.tokens:.0f}", "room": room["override"]} if room else {}


def _kept_from_ending(run: RunFacts) -> tuple[str, str]:
    """The setting that keeps answers from ending, and its value; empty if there is none."""
    if setting(run, _IGNORE) is True:
        return _IGNORE, "true"
    least, most = number_setting(run, _LEAST_TOKENS), number_setting(run, LIMIT)
    return (_LEAST_TOKENS, f"{least:.0f}") if least and most and least >= most else ("", "")


def _setting_evidence(key: str, value: str) -> tuple[Any, ...]:
    return (evidence(f"run.settings.{key}", value, "the run's config"),) if key else ()


def _release(run: RunFacts, key: str) -> dict[str, str]:
    return {} if not key else override(run, key, "false" if key == _IGNORE else 0)


def _by_setting(run: RunFacts, key: str, value: str) -> Verdict:
    return fail(_ENDS, f"{key}={value}: no answer can end before the limit", evidence=_setting_evidence(key, value),
                params=_release(run, key))  # fmt: skip


def _goes_on(run: RunFacts) -> tuple[str, ...]:
    """Samples that say the right answer and go on."""
    rows = [row for row in with_length(run) if (truth := row.ground_truth.strip())
            and row.response.strip().startswith(truth) and len(row.response.strip()) > len(truth)]  # fmt: skip
    return tuple(
        f"step {row.step}: {' '.join(row.response.split())[:60]!r} goes on after {row.ground_truth.strip()[:30]!r}"
        for row in rows[-1:]
    )


def _ends_later(run: RunFacts, bound: Bound, steps: list[tuple[int, bool]]) -> Verdict:
    """Answers ended at first; whether they stopped doing so, to the reward's harm."""
    last = next((place for place in range(len(steps), 0, -1) if not steps[place - 1][1]), 0)
    tail = steps[last:]
    before = _ended_until(run, bound, tail[0][0]) if len(tail) >= limit("steps_to_judge") else None
    if before is not None:
        words = f"every answer has {bound.tokens:.0f} tokens, the limit, from step {tail[0][0]} on; up to then "
        return fail(_ENDS, f"{words}{before:.0%} ended before it", details=drawn(run, SHORTEST, CLIPPED, *REWARD[:1]),
                    evidence=(proof(CLIPPED, f"1, {1 - before:.2g} before", tail[0][0], tail[-1][0]),))  # fmt: skip
    moved = rise(curve_of(run, *REWARD))
    ended = f"answers end before the limit of {bound.tokens:.0f} tokens in {sum(not long for _, long in steps)} of "
    if len(tail) < limit("steps_to_judge") or moved is None or moved.sigmas > -limit("sigmas"):
        return passed(f"{ended}{len(steps)} steps")
    words = f"every answer has {bound.tokens:.0f} tokens from step {tail[0][0]} on, not before"
    return warn(_ENDS, words, details=drawn(run, SHORTEST, CLIPPED, *REWARD[:1]),
                evidence=(proof(SHORTEST, words, tail[0][0], tail[-1][0]),))  # fmt: skip


def _ended_until(run: RunFacts, bound: Bound, since: int) -> float | None:
    """The share of answers that ended by themselves up to step SINCE, if from one step to the next none does.

    None where answers have come nearer to it step by step, as those of a policy do that learns to fill its length, or
    where what they earn fell with it: then the policy itself is broken.
    """
    clipped, reward = curve_of(run, CLIPPED), curve_of(run, *REWARD)
    if clipped is None or bound.hidden or min(window(clipped, since, clipped.steps[-1]).values, default=0.0) < 1:
        return None
    ended = [1 - value for value in window(clipped, clipped.steps[0], since - 1).values][-NEARBY:]
    if len(ended) < _EARLIER or min(ended[-_EARLIER:]) < _ENDED:
        return None
    moves = [abs(one - other) for one, other in pairwise(ended)]
    earned = around(reward, since - 1) if reward is not None else None
    if ended[-1] < 2 * max(moves) or (earned is not None and earned.down):
        return None
    return median(ended)


@check("RUN023", "Answers are not cut", needs=NEEDS, playbook="answers-are-cut",
       caused_by=(*NUMBERS, *DRIFT, *STEPS, "RUN022"),
       problem="Answers are cut")  # fmt: skip
def answers_are_whole(facts: Facts) -> Verdict:
    """The limit of length leaves room for right answers, and few answers reach it.

    What it does:
        Holds the longest answers against the ground truth: do they have room for it? Compares what answers at the limit
        earn with what those that ended earn. Without samples it reads the share of answers at the limit; where that is
        a few tokens, the share alone proves nothing. verl 0.9's default trainer logs the share that is as long as the
        longest answer of the batch, which is never 0.

    Why it matters:
        A cut answer has lost its result, so that it earns nothing however right it was; the policy learns to be short,
        not to be right.
    """
    run = run_of(facts)
    bound = bound_of(run)
    share = share_at_limit(run, bound) if bound is not None else None
    if bound is None or share is None:
        return lacking(run, CLIPPED)
    tail = median(share.values[-max(3, len(share.values) // 5) :])
    words = f"{tail:.0%} of answers at the limit of {bound.tokens:.0f} tokens"
    if tail < limit("cut_share"):
        return passed(words)
    fit = fit_of(run, bound)
    if fit is not None and fit.sure and not fit.whole:
        reason = f"it holds {fit.holds} characters of the {fit.needs} that a right answer has"
        return fail(_WHOLE, f"{words}: {reason}", **_more(run, bound, words))
    if fit is not None and fit.sure and not fit.room_to_end(bound):
        reason = f"a right answer has {fit.needs} characters, one a token, and then no token is left to end it"
        return fail(_WHOLE, f"{words}: {reason}", **_more(run, bound, words))
    if is_wall(run, bound):
        return fail(_WHOLE, f"{words}, and none is longer, though {LIMIT} is {bound.stated:.0f}",
                    **_more(run, bound, words))  # fmt: skip
    if fit is not None and fit.whole:
        return passed(f"{words}, which leaves room for the {fit.needs} characters of a right answer")
    cost = cost_of(run, bound)
    if cost is None:
        return _by_share(run, bound, words)
    if cost.sigmas < limit("sign_t"):
        return passed(f"{words}; they earn {cost.cut:.3g}, those that ended {cost.ended:.3g}")
    found = f"{words} earn {cost.cut:.3g}, those that ended {cost.ended:.3g}"
    return (fail if tail > 0.5 and cost.cut < cost.ended / 2 else warn)(_WHOLE, found, **_more(run, bound, words))


def _by_share(run: RunFacts, bound: Bound, words: str) -> Verdict:
    """Without samples that tell: a share is worth a warning, unless the reward says that it does no harm."""
    rewards = rewards_of(run)
    if rewards is not None and rewards.span <= 0:
        return unknown(f"{words}: all answers earn the same, so that it is not known what being cut costs")
    if _earns_the_most(run):
        return passed(f"{words}, and they earn nearly the best there is")
    if all(long for _, long in all_at_limit(run, bound)):
        return unknown(f"{words}: whether they are cut or never end is not known without samples")
    if bound.tokens < _TINY and curve_of(run, _TRUNCATED) is None:
        return info(f"{words}, so short that whole answers may have just this length; whether they ended is not logged",
                    details=drawn(run, CLIPPED, LONGEST, *REWARD[:1]))  # fmt: skip
    return warn(_WHOLE, words, **_more(run, bound, words))


def _earns_the_most(run: RunFacts) -> bool:
    """The reward ends near the best that any answer earned, and others earned less."""
    rewards = rewards_of(run)
    if rewards is None or rewards.span <= 0:
        return False
    return rewards.high - median(rewards.mean.values[-3:]) <= _NEAR_BEST * rewards.span


def _more(run: RunFacts, bound: Bound, words: str) -> dict[str, Any]:
    share = share_at_limit(run, bound)
    hidden = f"the config allows {bound.stated:.0f} tokens: something else cuts (max_tokens, max_model_len)"
    name = "share at that length" if bound.hidden else CLIPPED
    return {
        "details": (*((hidden,) if bound.hidden else ()), *((charted(name, share),) if share is not None else ()),
                    *drawn(run, LONGEST, *REWARD[:1])),
        "evidence": (proof(LONGEST if bound.hidden else CLIPPED, words, run.first_step, run.last_step),),
        "params": _room(run, bound),
    }  # fmt: skip


def _room(run: RunFacts, bound: Bound) -> dict[str, str]:
    """What gives answers room: twice the limit, or the limit of another setting that cuts them before."""
    if not bound.hidden:
        return {"double": f"{2 * bound.tokens:.0f}"} if override(run, LIMIT, 0) else {}
    prompt, whole = number_setting(run, _PROMPT), number_setting(run, _WHOLE_LENGTH)
    if prompt and whole and whole < prompt + bound.stated:
        return override(run, _WHOLE_LENGTH, int(prompt + bound.stated))
    return {"stated": f"{bound.stated:.0f}", "found": f"{bound.tokens:.0f}"}


@check("RUN024", "Answers keep their length", needs=NEEDS, playbook="response-length-runs-away",
       caused_by=(*ROOTS, "RUN017", "RUN034", "RUN035"))  # fmt: skip
def lengths_stay(facts: Facts) -> Verdict:
    """Answers do not grow to a multiple or shrink to nothing without earning more.

    What it does:
        Compares the mean length of the first and the last fifth of the run, and the reward over the same steps.

    Why it matters:
        Lengths that run away cost time first and the run later: answers reach the limit and are cut, or say nothing.
    """
    run = run_of(facts)
    lengths = curve_of(run, MEAN)
    if lengths is None:
        return lacking(run, MEAN)
    moved, earned = rise(lengths), rise(curve_of(run, *REWARD))
    if moved is None or len(lengths.values) < limit("steps_to_judge"):
        return skip(f"{len(lengths.values)} steps, too few to judge")
    words = f"{moved.first:.4g} tokens at first, {moved.last:.4g} at last"
    grown = moved.sigmas >= limit("sigmas") and moved.last >= limit("length_growth") * moved.first
    shrunk = moved.sigmas <= -limit("sigmas") and moved.last <= limit("length_shrink") * moved.first
    if not (grown or shrunk):
        return passed(words)
    if earned is None or earned.sigmas >= limit("sigmas"):
        return passed(f"{words}, and the reward rises with it" if earned else words)
    judge = fail if earned.sigmas <= -limit("sigmas") else warn
    return judge(
        "answers that keep a length",
        f"{words}, while the reward goes from {earned.first:.4g} to {earned.last:.4g}",
        details=drawn(run, MEAN, CLIPPED, *REWARD[:1]),
        evidence=(proof(MEAN, words, lengths.steps[0], lengths.steps[-1]),),
    )
