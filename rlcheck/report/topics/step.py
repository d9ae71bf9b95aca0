"""What the proof of a training step found, for a reader: the chain, link by link."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.facts.step import CapsuleProof, Link
from rlcheck.finding import Exhibit

_MARKS = {"same": "same", "differs": "DIFFERS", "unknown": "not judged"}


def headline(facts: Facts) -> str:
    """The proof in a line."""
    step = facts.step.value
    if step is None:
        return ""
    if step.failure is not None and not step.capsules:
        return f"no proof: {step.failure.stage or 'start'} failed"
    wrong = [(proof, link) for proof in step.capsules for link in proof.links if link.status == "differs"]
    steps = ", ".join(str(proof.step) for proof in step.capsules)
    if wrong:
        return f"steps recomputed: {steps}; step {wrong[0][0].step} differs first in: {wrong[0][1].name}"
    return f"steps recomputed: {steps}; every link that could be judged is the same"


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """The chain of each capsule."""
    step = facts.step.value
    return () if step is None else tuple(map(_chain, step.capsules))


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
