"""RES008-RES010: a run that was killed and started again, in a rehearsal, against the same run that was not."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, unknown
from rlcheck.checks.rollout.start import details_of
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.rehearsal import RehearsalFacts

_WORDS = {
    "data position": "the rows of a step that was trained already: the position in the data was not restored",
    "weights or random numbers": "the rows are the same and the answers are not: weights or random numbers were not "
    "restored",
    "optimizer": "rows and answers are the same and the update is not: the optimizer's state was not restored",
    "schedule": "rows are the same and the learning rate is not: the schedule was not restored",
    "": "",
}


def _rehearsed(facts: Facts) -> RehearsalFacts | Verdict:
    """What was rehearsed; a verdict where a run failed."""
    found = need(facts.rehearsal)
    failure = found.failure
    if failure is None:
        return found
    if failure.kind == "missing":
        return unknown(failure.line)
    return fail(
        f"{found.steps or 'some'} steps, a kill, and a resume",
        f"{failure.stage or 'start'}: {failure.root or failure.line}",
        details=details_of(failure),
        evidence=(evidence("rehearsal.failure.line", failure.line, "the rehearsal"),),
    )


@check("RES008", "A killed run has left a checkpoint", needs=("rehearsal",), playbook="no-checkpoint-found",
       problem="A killed run leaves no checkpoint, or cannot be started again")  # fmt: skip
def leaves_one(facts: Facts) -> Verdict:
    """The rehearsal's killed run has a finished checkpoint of a step before the kill, and the second start succeeds.

    What it does:
        Trains two steps of the config on a small batch, ends all processes with SIGKILL, and starts the run again.
        A save_freq above 0 becomes 1, as two steps are all there is; -1 and resume_mode stay what they are.

    Why it matters:
        A run that is preempted, or whose machine is lost, begins at step 0 where nothing was saved.
    """
    found = _rehearsed(facts)
    if isinstance(found, Verdict):
        return found
    if found.saved:
        return passed(f"killed after step {found.killed_after}, with the checkpoint of step {max(found.saved)}")
    return fail(
        "a finished checkpoint",
        f"none after step {found.killed_after}: trainer.save_freq={found.save_freq}",
        evidence=(evidence("rehearsal.saved", list(found.saved), "checkpoints of the killed run"),),
    )


@check("RES009", "A killed run goes on from its newest checkpoint", needs=("rehearsal",),
       playbook="resume-not-the-newest", caused_by=("RES008",),
       problem="A killed run does not go on from its newest checkpoint")  # fmt: skip
def takes_newest(facts: Facts) -> Verdict:
    """The second start of the rehearsal goes on from the newest checkpoint that the kill has left.

    What it does:
        Compares the step from which the second start went on with the newest finished checkpoint.

    Why it matters:
        With resume_mode=disable a restarted run trains again what it has trained, without an error.
    """
    found = _rehearsed(facts)
    if isinstance(found, Verdict) or not found.saved:
        return skip("nothing could be gone on from")
    newest = max(found.saved)
    if found.resumed_from == newest:
        return passed(f"from step {newest}")
    start = f"from step {found.resumed_from}" if found.resumed_from else "it started over at step 1"
    return fail(
        f"the second start goes on from step {newest}",
        f"{start}, with trainer.resume_mode={found.resume_mode}",
        evidence=(evidence("rehearsal.resumed_from", found.resumed_from, "output of the second start"),),
    )


@check("RES010", "A resumed run is the run that was not stopped", needs=("rehearsal",), playbook="resume-state-lost",
       caused_by=("RES008", "RES009"), problem="A resumed run is not the run that was not stopped")  # fmt: skip
def is_the_same(facts: Facts) -> Verdict:
    """Each metric after the resume has the bits that it has in a run that was not stopped.

    What it does:
        Holds the metrics, hashes of the sampled tokens and of the parameters against those of a run of the same steps
        without a kill; the steps before the kill show whether this config repeats itself here at all.

    Why it matters:
        What a checkpoint does not hold starts over in silence: optimizer, schedule, position in the data, random
        numbers. The curves have a dent then, or the same rows are trained twice.
    """
    found = _rehearsed(facts)
    if isinstance(found, Verdict) or not found.resumed_from:
        return skip("nothing was resumed")
    if found.early is not None:
        return unknown(
            f"the run does not repeat itself here: before the kill, {found.early.name} of step {found.early.step} is "
            f"{found.early.straight} in one run and {found.early.other} in the other"
        )
    first = found.first
    if first is None:
        return passed(f"{found.compared} values of {found.steps} steps are equal to the bit")
    return fail(
        "metrics of a run that was not stopped, to the bit",
        f"step {first.step}, {first.name}: {first.straight} without a stop, {first.other} after the resume",
        details=tuple(filter(None, (_WORDS[found.lost],))),
        evidence=(evidence("rehearsal.first", f"{first.name} of step {first.step}", "metrics of both runs"),),
    )
