"""What a check is: a pure function from facts to a verdict, with an ID, a page and the facts that it needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Literal

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.facts.document import Facts

Status = Literal["pass", "info", "warn", "fail", "skip", "unknown", "error"]
_ID = re.compile(r"[A-Z]{3}\d{3}")


class Evidence(Struct, frozen=True):
    """One thing that the verdict rests on.

    `fact` is the path in the facts document, `value` what was there, `source` the file, command or API that said so.
    """

    fact: str
    value: str
    source: str = ""


class Verdict(Struct, frozen=True):
    """What a check concludes.

    `message` is one sentence; for a problem it reads "expected X, found Y". `headline` names the failure where one
    check finds several kinds of it ("" for the check's own `problem`). `details` are further lines, one a case.
    `params` fill the `{{name}}` places of the playbook's fixes. `why` is what follows from this kind of failure ("" for
    what follows from all of them: the first sentence of *Why it matters*). `nodes` are those that a run is to leave
    out, where a check looks at several.
    """

    status: Status
    message: str
    headline: str = ""
    expected: str = ""
    found: str = ""
    details: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    params: dict[str, str] = {}
    why: str = ""
    nodes: tuple[str, ...] = ()


def passed(message: str, **more: Any) -> Verdict:
    """Say that all is as it should be."""
    return Verdict(status="pass", message=message, **more)


def info(message: str, **more: Any) -> Verdict:
    """Report what is worth knowing and needs no fix."""
    return Verdict(status="info", message=message, **more)


def skip(reason: str) -> Verdict:
    """Say that the check does not apply to this machine."""
    return Verdict(status="skip", message=reason)


def unknown(reason: str) -> Verdict:
    """Say that the check applies and could not run."""
    return Verdict(status="unknown", message=reason)


def warn(expected: str, found: str, **more: Any) -> Verdict:
    """Report what will be slow, fragile or wrong in some runs."""
    return _problem("warn", expected, found, more)


def fail(expected: str, found: str, **more: Any) -> Verdict:
    """Report what will stop a run or make it compute the wrong thing."""
    return _problem("fail", expected, found, more)


def _problem(status: Status, expected: str, found: str, more: dict[str, Any]) -> Verdict:
    message = more.pop("message", "") or f"expected {expected}, found {found}"
    return Verdict(status=status, message=message, expected=expected, found=found, **more)


def evidence(fact: str, value: object, source: str = "") -> Evidence:
    """Return evidence with any value, shown as text."""
    return Evidence(fact=fact, value=str(value), source=source)


class Check(msgspec.Struct, frozen=True):
    """A check as the engine runs it.

    `title` is the rule, which reads alone; `problem` is the sentence that heads a finding when the rule is broken, ""
    where the playbook's title is that sentence already. `needs` are dotted paths into `Facts`; when one is missing the
    check is skipped (absent) or unknown (could not look). `caused_by` names checks whose failure explains this one's,
    so that they are fixed first.
    """

    id: str
    title: str
    needs: tuple[str, ...]
    playbook: str
    caused_by: tuple[str, ...]
    judge: Callable[[Facts], Verdict]
    problem: str = ""

    @property
    def family(self) -> str:
        """The three letters of the ID."""
        return self.id[:3]

    @property
    def doc(self) -> str:
        """The page of the check: its docstring, with fixed headings."""
        return self.judge.__doc__ or ""

    def section(self, heading: str) -> str:
        """The text under `heading` of the page (`Why it matters`, …), as one paragraph a line."""
        match = re.search(rf"^[ ]*{heading}:?\n(.*?)(?=^[ ]*[A-Z][\w ]+:\n|\Z)", self.doc, re.M | re.S)
        paragraphs = re.split(r"\n\s*\n", match.group(1)) if match else []
        return "\n".join(" ".join(p.split()) for p in paragraphs if p.strip())


def check(
    id: str, title: str, *, needs: Iterable[str], playbook: str, caused_by: Iterable[str] = (), problem: str = ""
) -> Callable[[Callable[[Facts], Verdict]], Check]:
    """Make a check of a pure function; see `Check` for the arguments.

    Raises:
        ValueError: the ID is not three capitals and three digits.
    """
    if not _ID.fullmatch(id):
        raise ValueError(f"check ID {id!r} is not like SYS001")

    def wrap(judge: Callable[[Facts], Verdict]) -> Check:
        return Check(id, title, tuple(needs), playbook, tuple(caused_by), judge, problem)

    return wrap


def checks_in(*modules: ModuleType, family: str = "") -> tuple[Check, ...]:
    """Return every check in `modules` (of one family, when it is named), in order of ID."""
    found = {
        value.id: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Check) and family in ("", value.family)
    }
    return tuple(found[id] for id in sorted(found))
