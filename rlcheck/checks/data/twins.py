"""Rows that are like others: repeats, contradictions, leaks."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.data.common import data, found, listed, places, verdict
from rlcheck.facts.data import DataFacts, DataFile
from rlcheck.facts.document import Facts


@check("DAT023", "No prompt is twice in the training data", needs=("data",), playbook="data-twins",
       problem="Some prompts are twice in the training data")  # fmt: skip
def repeated(facts: Facts) -> Verdict:
    """Compares prompts by a digest of 64 bits.

    What it does:
        Counts training rows whose messages (and media) were in an earlier row, with the same answer; and rows that
        are equal but for letter case and white space. Repeats inside the validation data are only noted: an exam is
        often taken several times.

    Why it matters:
        Repeated prompts weigh more than others, and a small set that was copied is learned by heart. Sometimes it is
        meant: then waive this check.
    """
    section = data(facts)
    troubles, alike = found(section, "repeated"), found(section, "alike")
    named = _named_again(section, "train", "train")
    if named:
        return _twice(named, "each file once")
    if troubles:
        return verdict(warn, section, (*troubles, *alike), "each prompt once")
    noted = (*alike, *found(section, "repeated_val"))
    if noted:
        return info(listed(noted), details=places(noted))
    return passed("each prompt once")


@check("DAT024", "No prompt has two answers", needs=("data",), playbook="data-twins",
       problem="A prompt has two answers")  # fmt: skip
def contradictions(facts: Facts) -> Verdict:
    """Compares the ground truths of rows with the same prompt.

    What it does:
        Reports rows whose prompt came before with another ground truth, in training or in validation data.

    Why it matters:
        One of the two rewards punishes the right answer. Which one, no program can know.
    """
    section = data(facts)
    troubles = found(section, "contradicts", "contradicts_val")
    return verdict(warn, section, troubles, "one answer for each prompt") if troubles else passed("one for each prompt")


@check("DAT025", "No training prompt is in the validation data", needs=("data",), playbook="data-twins",
       problem="Training prompts are in the validation data")  # fmt: skip
def leak(facts: Facts) -> Verdict:
    """Looks for validation prompts among the training prompts.

    What it does:
        Compares digests of the user's part of each prompt, letter case and white space aside.

    Why it matters:
        The validation reward then rises with what was learned by heart, and says nothing about new prompts.
    """
    section = data(facts)
    if not any(file.split == "val" for file in section.files):
        return skip("no validation data; --val names it")
    named = _named_again(section, "train", "val")
    if named:
        return _twice(named, "validation prompts that training has not seen")
    troubles = found(section, "leak", "leak_alike")
    return (
        verdict(warn, section, troubles, "validation prompts that training has not seen")
        if troubles
        else passed("none of them")
    )


def _named_again(section: DataFacts, first: str, second: str) -> tuple[DataFile, ...]:
    """Files of split SECOND that are one of split FIRST, before them in the list."""
    before = {file.path for file in section.files if file.split == first}
    return tuple(file for file in section.files if file.split == second and file.same_as in before)


def _twice(files: tuple[DataFile, ...], expected: str) -> Verdict:
    what = "training and validation" if files[0].split == "val" else "training twice"
    lines = tuple(f"{file.path} is {file.same_as}" for file in files if file.path != file.same_as)
    return warn(expected, f"{files[0].path}: the same file for {what}", details=lines,
                evidence=(evidence("data.files", files[0].same_as, files[0].path),),
                params={"again": files[0].path})  # fmt: skip
