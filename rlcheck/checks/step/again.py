"""STP021-STP024: a captured step, run again by the trainer itself, gives the same bits."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.step import Link, Replay
from rlcheck.text import listed

ANSWERS = "answers"
"""What the engine sampled: training reads the recorded answers, so that nothing follows from it."""
_SHOWN = 4


def _first(replay: Replay) -> Link | None:
    """The first quantity of training that differs."""
    first = replay.first
    return None if first is None or first.name == ANSWERS else first


def _more(replay: Replay, link: Link) -> dict[str, tuple[object, ...]]:
    details = [f"where: {listed(link.where, _SHOWN)}"] if link.where else []
    details += [f"explained by: {cause}" for cause in link.causes]
    details += [f"largest difference: {link.largest:.3g}"] if link.largest is not None else []
    details += [f"other than in the recorded step: {listed(replay.changed, 8)}"] if replay.changed else []
    details += replay.notes
    compared = f"{link.compared} compared"
    return {"details": tuple(details), "evidence": (evidence(f"step.{link.name}", compared, replay.path),)}


def _same(replays: list[Replay]) -> Verdict:
    count = sum(link.compared for replay in replays for link in replay.links)
    steps = ", ".join(str(number) for number in dict.fromkeys(replay.step for replay in replays))
    notes = dict.fromkeys(note for replay in replays for note in replay.notes)
    return passed("; ".join((f"step {steps}: {count} quantities are the same to the bit", *notes)))


@check("STP021", "The step runs again with the same bits", needs=("step",), playbook="step-runs-otherwise",
       problem="The step does not run again with the same bits on the same machine")  # fmt: skip
def same_again(facts: Facts) -> Verdict:
    """Runs the captured step by the trainer itself, where machine and versions are those of the recorded step.

    What it does:
        Loads the recorded weights and moments into as many ranks, and takes the step with the recorded answers.

    Why it matters:
        The trainer is deterministic: what differs on equal software was computed wrongly, then or now.
    """
    whole = [one for one in need(facts.step).replays if not one.device and not one.changed]
    if not whole:
        return skip("no step was run again on its own machine and versions")
    for replay in whole:
        if (link := _first(replay)) is not None:
            return fail("the same bits", f"step {replay.step}: {link.name} differs first: {link.said}",
                        **_more(replay, link))  # fmt: skip
    return _same(whole)


@check("STP022", "Other versions or machines run the step with the same bits",
       needs=("step",), playbook="step-runs-otherwise",
       problem="The step runs otherwise with these versions, or on this machine")  # fmt: skip
def same_elsewhere(facts: Facts) -> Verdict:
    """Runs the captured step where a version, the device or the driver is another than in the recorded step.

    What it does:
        As STP021; names what has changed, and the first tensor that differs.

    Why it matters:
        It says which upgrade changes numbers, and by how much, before a run is gone on with on it.
    """
    changed = [one for one in need(facts.step).replays if not one.device and one.changed]
    if not changed:
        return skip("no step was run again elsewhere")
    for replay in changed:
        if (link := _first(replay)) is not None:
            return warn("the same bits", f"step {replay.step}: {link.name} differs first: {link.said}",
                        **_more(replay, link))  # fmt: skip
    return _same(changed)


@check("STP023", "Every device computes the same bits", needs=("step",), playbook="gpu-computes-wrongly",
       problem="A device computes other bits than its neighbours")  # fmt: skip
def devices_agree(facts: Facts) -> Verdict:
    """Runs one micro batch on each device of the machine, and compares them.

    What it does:
        One rank a device, the same weights, rows and versions: forward, backward, optimizer.

    Why it matters:
        A GPU that computes wrongly is in no log: its gradient goes into every weight of every rank.
    """
    each = [one for one in need(facts.step).replays if one.device]
    if not each:
        return skip("no micro batch was run on each device (--each-device)")
    odd = [(replay, link) for replay in each if (link := _first(replay)) is not None]
    if not odd:
        return passed(f"{len(each)} devices agree to the bit: {listed([one.device for one in each], 8)}")
    replay, link = odd[0]
    names = listed([one.device for one, _ in odd], 8)
    return fail("the same bits on every device",
                f"{names} differ from {replay.against}; of {replay.device} {link.name} first: {link.said}",
                params={"device": replay.device}, **_more(replay, link))  # fmt: skip


@check("STP024", "The engine samples the same answers again", needs=("step",), playbook="step-runs-otherwise",
       problem="The engine samples other answers to the same prompts and seeds")  # fmt: skip
def same_answers(facts: Facts) -> Verdict:
    """Asks the engine the recorded prompts again, with the recorded seeds and weights.

    What it does:
        Compares tokens and log-probabilities; training goes on with the recorded answers.

    Why it matters:
        An engine whose batches change its numbers cannot repeat a run, though it need not be wrong.
    """
    found = [(one, link) for one in need(facts.step).replays for link in one.links if link.name == ANSWERS]
    if not found:
        return skip("no engine was asked again")
    wrong = [(replay, link) for replay, link in found if link.status == "differs"]
    if not wrong:
        return passed(f"{sum(link.compared for _, link in found)} tokens are the same")
    replay, link = wrong[0]
    if replay.changed or _first(replay) is not None:
        return info(f"step {replay.step}: {link.said}")
    return warn("the recorded answers", f"step {replay.step}: {link.said}", **_more(replay, link))
