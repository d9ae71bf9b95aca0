"""RUN019: the reward rises because the task is done better."""

from __future__ import annotations

from rlcheck.check import Verdict, check, fail, passed, unknown, warn
from rlcheck.checks.run.behaviour import REWARD
from rlcheck.checks.run.causes import ROOTS
from rlcheck.checks.run.common import NEEDS, drawn, lacking, run_of
from rlcheck.checks.run.gaming_signs import signs_of
from rlcheck.checks.run.trend import rewards_of, rise
from rlcheck.facts.document import Facts
from rlcheck.measure.run.limits import limit


@check("RUN019", "The reward rises because answers get better", needs=NEEDS, playbook="reward-gamed",
       caused_by=(*ROOTS, "RUN034"))  # fmt: skip
def not_gamed(facts: Facts) -> Verdict:
    """No sign that the reward is earned by length, repetition, form alone, or one answer for all prompts.

    What it does:
        While the reward rises: do answers grow to a multiple without validation gaining, do they repeat themselves, do
        all prompts get the same answer, does one part of the reward rise and the others not, does it go with length
        and not with the ground truth, would one fixed answer to all prompts, or answers to other prompts, earn as much?

    Why it matters:
        A policy finds whatever pays. A curve that rises for the wrong reason looks like success until a person reads
        the answers.
    """
    run = run_of(facts)
    rewards = rewards_of(run)
    if rewards is None:
        return lacking(run, *REWARD)
    moved = rise(rewards.mean)
    if moved is None or len(rewards.mean.values) < limit("steps_to_judge"):
        return unknown(f"{len(rewards.mean.values)} steps, too few to judge")
    rising = moved.sigmas >= limit("sigmas") and moved.change > limit("reward_flat_share") * rewards.span
    signs = signs_of(run, rewards) if rising else ()
    if not rising or not signs:
        return passed("the reward does not rise" if not rising else "the reward rises, and nothing speaks against it")
    judge = fail if signs[0].sure else warn
    return judge(
        f"a reward that rises, {moved.first:.4g} to {moved.last:.4g}, because answers get better",
        "; ".join(sign.words for sign in signs),
        details=(*(line for sign in signs for line in sign.details), *drawn(run, *REWARD[:1])),
        evidence=tuple(sign.proof for sign in signs),
    )
