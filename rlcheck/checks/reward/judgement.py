"""RWD007-RWD009: a right answer earns more than a wrong one, and nothing else earns as much."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.checks.reward.calls import LOADED, called
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.reward import FormScore, RewardFacts, Shortcut

_SHOWN = 6


def _form(form: FormScore) -> str:
    return repr(form.form)[1:-1]


def _tried(reward: RewardFacts) -> str:
    return f"{len(reward.forms)} forms of answers on {len(reward.rows)} rows"


@check("RWD007", "The ground truth earns more than a wrong answer", needs=("reward",), playbook="reward-sign",
       caused_by=(LOADED,), problem="A wrong answer earns more than the ground truth")  # fmt: skip
def sign_is_right(facts: Facts) -> Verdict:
    """Of right and wrong answers in the same form, right ones earn more.

    What it does:
        Writes each row's ground truth, and that of another row, in every usual form; judges the form in which both are
        furthest apart.

    Why it matters:
        The optimizer works as well towards the wrong answers, and no curve shows it: the reward rises.
    """
    reward = called(facts)
    if reward is None:
        return unknown("the function was not called")
    best = reward.best
    if best is None:
        return skip("no form of answer earns more with the ground truth: RWD008 judges that")
    numbers = f"right {best.right:.3g}, wrong {best.wrong:.3g}, as {_form(best)}"
    if best.gain < 0:
        return fail("more for the ground truth", numbers,
                    evidence=(evidence("reward.forms", numbers, reward.path),))  # fmt: skip
    return passed(numbers)


@check("RWD008", "The score depends on the ground truth", needs=("reward",), playbook="reward-ignores-truth",
       caused_by=(LOADED,), problem="The score does not depend on the ground truth")  # fmt: skip
def truth_counts(facts: Facts) -> Verdict:
    """Some form of answer gets another score with another ground truth, and the function's code reads it.

    What it does:
        As RWD007; where no form makes a difference, looks whether the code loads its argument at all.

    Why it matters:
        What ignores the ground truth teaches form alone; what never varies teaches nothing.
    """
    reward = called(facts)
    if reward is None:
        return unknown("the function was not called")
    if reward.best is not None:
        return passed(f"in {sum(form.gain != 0 for form in reward.forms)} of {_tried(reward)}")
    reads = reward.reads_truth
    if reads.value is None and reads.missing is not None and reward.style == "trl":
        return info(f"{reads.missing.reason}: it judges form alone")
    if not reward.forms:
        return unknown("no right answer could be made from the data, or none got a score")
    proof = (evidence("reward.forms", _tried(reward), reward.path),)
    if reads.value is False:
        return fail("a score that depends on ground_truth", "code that never reads it", evidence=proof)
    if reward.varies:
        return warn("a score that depends on the ground truth",
                    f"other scores for other answers, the same for right and wrong ones, in {_tried(reward)}",
                    evidence=proof)  # fmt: skip
    one = reward.forms[0].right
    return unknown(f"every answer got {one:g}, in {_tried(reward)}: if it wants another form, give it with --form")


@check("RWD009", "Nothing but a right answer earns the full score", needs=("reward.shortcuts",),
       playbook="reward-gamed", caused_by=(LOADED, "RWD007", "RWD008"),
       problem="An answer that solves nothing earns the full score")  # fmt: skip
def no_shortcut(facts: Facts) -> Verdict:
    """Form without content, marks, the prompt again and lists of candidates earn less than a right answer.

    What it does:
        Scores them on each row whose ground truth they do not hold by chance.

    Why it matters:
        Optimisation finds the cheapest way to the reward within a few hundred steps.
    """
    reward = need(facts.reward)
    tried = need(reward.shortcuts)
    found = [one for one in tried if one.num_full and 2 * one.num_full >= one.num_rows]
    cheap = [one for one in found if not one.hedges]
    hedges = [one for one in found if one.hedges]
    if cheap:
        return fail("less for what solves nothing", _said(cheap[0]), details=tuple(map(_said, found[:_SHOWN])),
                    evidence=(evidence("reward.shortcuts", _said(cheap[0]), reward.path),))  # fmt: skip
    if hedges:
        return warn("less for an answer that names many candidates", _said(hedges[0]),
                    details=tuple(map(_said, found[:_SHOWN])),
                    headline="An answer that names many candidates earns the full score",
                    evidence=(evidence("reward.shortcuts", _said(hedges[0]), reward.path),))  # fmt: skip
    return passed(f"{len(tried)} kinds tried, the best mean {max((one.mean for one in tried), default=0.0):.3g}")


def _said(shortcut: Shortcut) -> str:
    return f"{shortcut.text}: the full score in {shortcut.num_full} of {shortcut.num_rows} rows"
