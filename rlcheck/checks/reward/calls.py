"""RWD001-RWD006, RWD010: a reward function gives every answer a number, in time, wherever it is called."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, unknown, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.reward import Outcome, RewardFacts

LOADED = "RWD001"
_SHOWN = 6


def called(facts: Facts) -> RewardFacts | None:
    """The function, if it could be called at all."""
    reward = need(facts.reward)
    return reward if reward.num_calls else None


def _details(outcomes: tuple[Outcome, ...]) -> tuple[str, ...]:
    return tuple(f"{one.text} ({one.row}): {one.said}" for one in outcomes[:_SHOWN])


def _first(outcomes: tuple[Outcome, ...]) -> str:
    return f"{outcomes[0].text}: {outcomes[0].said}"


@check("RWD001", "The reward function can be loaded and called", needs=("reward",), playbook="run-reward-function",
       problem="The reward function cannot be called")  # fmt: skip
def is_called(facts: Facts) -> Verdict:
    """Imports the file in a process of its own, and calls the function as verl, rltrain or TRL does.

    What it does:
        Takes the function that is named, or compute_score, or the only one with such arguments.

    Why it matters:
        A file that cannot be imported stops a run after the models are loaded.
    """
    reward = need(facts.reward)
    if reward.failure is not None:
        return fail("a function that can be called", reward.failure.root or reward.failure.line,
                    details=reward.failure.tail,
                    evidence=(evidence("reward.failure", reward.failure.line, reward.path),))  # fmt: skip
    return passed(f"{reward.function}, called {reward.num_calls} times as {reward.style} does, "
                  f"at most {reward.slowest_s * 1e3:.3g} ms")  # fmt: skip


@check("RWD002", "Every score is a finite number", needs=("reward",), playbook="reward-no-number",
       caused_by=(LOADED,), problem="The reward function returns no finite number")  # fmt: skip
def gives_numbers(facts: Facts) -> Verdict:
    """No answer, however odd, gets None, NaN, infinity or something that is no number.

    What it does:
        Looks at what each call returned: right and wrong answers, empty, broken and huge ones.

    Why it matters:
        One NaN among the rewards of a group makes its advantages, then the loss and all weights NaN.
    """
    reward = called(facts)
    if reward is None:
        return unknown("the function was not called")
    if not reward.empty:
        return passed(f"{reward.num_calls} calls")
    return fail("a finite number for every answer", _first(reward.empty), details=_details(reward.empty),
                evidence=(evidence("reward.empty", len(reward.empty), reward.path),))  # fmt: skip


@check("RWD003", "No answer makes the reward function raise", needs=("reward",), playbook="reward-raises",
       caused_by=(LOADED,), problem="The reward function raises on some answers")  # fmt: skip
def never_raises(facts: Facts) -> Verdict:
    """Empty, broken and huge answers get a score, as all others.

    What it does:
        Calls it on what models write now and then: nothing, unclosed tags, numbers that are none, 100,000 characters.

    Why it matters:
        What the model writes must not be able to end the run: verl, rltrain and TRL stop at the first exception.
    """
    reward = called(facts)
    if reward is None:
        return unknown("the function was not called")
    if not reward.raised:
        return passed(f"{reward.num_calls} calls")
    return fail("a score for every answer", _first(reward.raised), details=_details(reward.raised),
                evidence=(evidence("reward.raised", len(reward.raised), reward.path),))  # fmt: skip


@check("RWD004", "Every call ends in time", needs=("reward",), playbook="reward-hangs",
       caused_by=(LOADED,), problem="The reward function does not end on some answers")  # fmt: skip
def ends_in_time(facts: Facts) -> Verdict:
    """Every call ends within the limit (--timeout), and leaves its process alive.

    What it does:
        Kills the process of a call that takes longer, and goes on with the next answer in a new one.

    Why it matters:
        All GPUs wait for the last reward of a batch. Long answers make regular expressions backtrack, and towers of
        powers make symbolic mathematics compute forever.
    """
    reward = called(facts)
    if reward is None:
        return unknown("the function was not called")
    if not reward.late:
        return passed(f"the slowest of {reward.num_calls} calls took {reward.slowest_s:.3g} s ({reward.slowest})")
    return fail(f"an end within {reward.limit_s:g} s", _first(reward.late), details=_details(reward.late),
                evidence=(evidence("reward.late", len(reward.late), reward.path),))  # fmt: skip


@check("RWD005", "Threads get the same scores", needs=("reward.threads",), playbook="reward-threads",
       caused_by=(LOADED, "RWD010"), problem="The reward function gives other scores when threads call it")  # fmt: skip
def threads_agree(facts: Facts) -> Verdict:
    """Called from several threads at once, it gives what it gives alone.

    What it does:
        Repeats the same calls from eight threads, which change places every 10 microseconds.

    Why it matters:
        verl calls rewards from threads. State that they share mixes up answers: each gets the score of another.
    """
    use = need(need(facts.reward).threads)
    proof = (
        evidence("reward.threads", f"{use.num_calls} calls in {use.num_threads} threads", need(facts.reward).path),
    )
    if use.num_other:
        return fail("the same scores as alone", f"{use.num_other} of {use.num_calls} differ", evidence=proof,
                    details=_details(use.other))  # fmt: skip
    if use.num_failed:
        return warn("the same scores as alone", f"{use.num_failed} of {use.num_calls} calls give none",
                    details=_details(use.failed), evidence=proof,
                    headline="The reward function does not work in threads",
                    why="verl calls rewards from threads; rltrain and TRL call them in the main thread.")  # fmt: skip
    return passed(f"{use.num_calls} calls in {use.num_threads} threads")


@check("RWD006", "The reward function can be sent to another process", needs=("reward.pickle",),
       playbook="reward-not-pickled", caused_by=(LOADED,),
       problem="The reward function cannot be sent to another process")  # fmt: skip
def is_picklable(facts: Facts) -> Verdict:
    """It can be pickled, by name and, where cloudpickle is installed, with its code as Ray sends functions.

    What it does:
        Pickles it after the calls before.

    Why it matters:
        verl's reward managers that use processes or Ray tasks send the function there; rltrain and TRL load the file.
    """
    why = need(need(facts.reward).pickle)
    if why:
        return warn("a function that can be pickled", why,
                    evidence=(evidence("reward.pickle", why, need(facts.reward).path),))  # fmt: skip
    return passed("by name and by value")


@check("RWD010", "The same answer gets the same score", needs=("reward.repeats",), playbook="reward-unsteady",
       caused_by=(LOADED,), problem="The same answer gets another score the next time")  # fmt: skip
def is_steady(facts: Facts) -> Verdict:
    """Called again, in another order, in another process with another order of sets, it gives the same scores.

    What it does:
        Repeats right and wrong answers twice, backwards first.

    Why it matters:
        Noise in the reward is noise in the gradient; a score that depends on what was scored before is worse: equal
        answers of one group get different advantages.
    """
    repeats = need(need(facts.reward).repeats)
    if not repeats.num_calls:
        return skip("no call was repeated")
    if repeats.num_other:
        return warn("the same scores again", f"{repeats.num_other} of {repeats.num_calls} differ",
                    details=_details(repeats.other),
                    evidence=(evidence("reward.repeats", repeats.num_other, need(facts.reward).path),))  # fmt: skip
    return passed(f"{repeats.num_calls} calls")
