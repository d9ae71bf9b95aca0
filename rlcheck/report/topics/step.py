"""What the proof of a training step found, for a reader: the chain, link by link."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.facts.step import CapsuleProof, Link, Replay
from rlcheck.finding import Exhibit

_MARKS = {"same": "same", "differs": "DIFFERS", "unknown": "not judged", "absent": "none"}


def headline(facts: Facts) -> str:
    """The proof in a line."""
    step = facts.step.value
    if step is None:
        return ""
    if step.failure is not None and not step.capsules and not step.replays:
        return f"no proof: {step.failure.stage or 'start'} failed"
    if step.replays:
        return _again(step.replays)
    wrong = [(proof, link) for proof in step.capsules for link in proof.links if link.status == "differs"]
    steps = ", ".join(str(proof.step) for proof in step.capsules)
    if wrong:
        return f"steps recomputed: {steps}; step {wrong[0][0].step} differs first in: {wrong[0][1].name}"
    return f"steps recomputed: {steps}; every link that could be judged is the same"


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """The chain of each capsule."""
    step = facts.step.value
    return () if step is None else (*map(_chain, step.capsules), *map(_replayed, step.replays))


def _again(replays: tuple[Replay, ...]) -> str:
    count = len([replay for replay in replays if replay.device])
    ran = f"a micro batch on {count} devices" if count else f"run again: step {', '.join(str(r.step) for r in replays)}"
    wrong = next((replay for replay in replays if replay.first is not None), None)
    if wrong is None or wrong.first is None:
        return f"{ran}; the same to the bit"
    where = f"{wrong.device} against {wrong.against}" if wrong.device else f"step {wrong.step}"
    return f"{ran}; {where} differs first in: {wrong.first.name}"


def _replayed(replay: Replay) -> Exhibit:
    rows = tuple((link.name, _MARKS[link.status], _numbers(link), link.said) for link in replay.links)
    how = f"one micro batch on {replay.device} against {replay.against}" if replay.device else "run again"
    changed = tuple(f"other than in the recorded step: {each}" for each in replay.changed)
    columns = ("quantity", "", "largest difference", "")
    title = f"Step {replay.step}, {how}: {replay.seconds:.0f} s"
    return Exhibit(title=title, columns=columns, rows=rows, notes=(replay.path, *changed, *replay.notes))


def _chain(proof: CapsuleProof) -> Exhibit:
    rows = tuple((link.name, _MARKS[link.status], _numbers(link), link.said) for link in proof.links)
    kept = f"{proof.proven_rows} of {proof.rows} rows" if proof.proven_rows != proof.rows else f"{proof.rows} rows"
    title = f"Step {proof.step} of {proof.trainer or 'a trainer'}, recomputed: {kept}, {proof.seconds:.0f} s"
    columns = ("link", "", "largest difference", "")
    return Exhibit(title=title, columns=columns, rows=rows, notes=(proof.path, *proof.notes))


def _numbers(link: Link) -> str:
    if link.largest is None:
        return ""
    return f"{link.largest:.1e}" if link.bound is None else f"{link.largest:.1e} of {link.bound:.1e}"
