"""The report: what every renderer shows and what `--format json` prints."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rlcheck.check import Evidence, Status
from rlcheck.facts.base import Struct

REPORT_SCHEMA_VERSION = "1.0"
PROBLEMS: tuple[Status, ...] = ("fail", "error", "warn", "unknown")
STATUS_ORDER: tuple[Status, ...] = ("fail", "error", "warn", "unknown", "info", "pass", "skip")


class Fix(Struct, frozen=True, omit_defaults=False):
    """One way to fix a problem, its parameters filled in.

    `command` is what to type, "" for advice. A `safe` fix only looks, or changes what one line takes back; `caution` is
    what to know of it first. An unsafe one says in `destroys` what it would change, interrupt or delete. A command of
    kind `look` changes nothing. `complete` is False while a `<name>` is left for the reader to fill. What is
    done `by_hand`, as a value is an example or a step comes before it, `--fix` never applies.
    """

    title: str
    kind: Literal["env", "config", "package", "shell", "look", "advice"]
    safety: Literal["safe", "unsafe"]
    needs_root: bool = False
    command: str = ""
    destroys: str = ""
    caution: str = ""
    complete: bool = True
    by_hand: bool = False


class Waiver(Struct, frozen=True, omit_defaults=False):
    """Why somebody decided to live with a finding, and until when (ISO date, "" without end)."""

    reason: str = ""
    expires: str = ""


class Finding(Struct, frozen=True, omit_defaults=False):
    """What one check concluded about one node.

    `title` is the rule; `headline` is what a report shows first: the failure of what failed or warned, else the title.
    """

    id: str
    title: str
    headline: str
    family: str
    status: Status
    message: str
    expected: str = ""
    found: str = ""
    details: tuple[str, ...] = ()
    why: str = ""
    evidence: tuple[Evidence, ...] = ()
    node: str = ""
    playbook: str = ""
    fixes: tuple[Fix, ...] = ()
    caused_by: tuple[str, ...] = ()
    duration_ms: float = 0.0
    waived: Waiver | None = None

    @property
    def is_problem(self) -> bool:
        """Whether this finding wants attention: it failed, warned or could not run, and is not waived."""
        return self.status in PROBLEMS and self.waived is None


class FamilyLine(Struct, frozen=True, omit_defaults=False):
    """One family on one node: its worst status and, in a few words, what is there."""

    family: str
    title: str
    status: Status
    headline: str
    node: str = ""


class Exhibit(Struct, frozen=True, omit_defaults=False):
    """A table that the findings rest on: what was measured, for a reader. Machines read the facts instead."""

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


class Summary(Struct, frozen=True, omit_defaults=False):
    """How many findings have each status. Waived findings count as `waived` alone."""

    passed: int = 0
    info: int = 0
    warn: int = 0
    fail: int = 0
    skip: int = 0
    unknown: int = 0
    error: int = 0
    waived: int = 0


class Report(Struct, frozen=True, omit_defaults=False):
    """Everything that one run of the doctor has to say. `checks` come in order of what to fix first."""

    version: str
    command: str
    schema_version: str = REPORT_SCHEMA_VERSION
    tool: str = "rlcheck"
    collected_at: str = ""
    nodes: tuple[str, ...] = ()
    duration_ms: float = 0.0
    strict: bool = False
    exit_code: int = 0
    summary: Summary = Summary()
    families: tuple[FamilyLine, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()
    checks: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    data: dict[str, Any] = {}
    """For programs: what a command computed, by its name (`memory`: the whole prediction). Exhibits are for readers."""


def summarize(findings: tuple[Finding, ...]) -> Summary:
    """Count the findings by status."""
    counts = dict.fromkeys(("passed", "info", "warn", "fail", "skip", "unknown", "error", "waived"), 0)
    for finding in findings:
        name = "waived" if finding.waived else "passed" if finding.status == "pass" else finding.status
        counts[name] += 1
    return Summary(**counts)


def exit_code(summary: Summary, strict: bool) -> int:
    """0 healthy, 1 something failed; with `strict` also when something warned or could not run."""
    stops = summary.fail > 0
    doubts = summary.warn + summary.unknown + summary.error > 0
    return 1 if stops or (strict and doubts) else 0


def report_schema() -> dict[str, object]:
    """The JSON Schema (draft 2020-12) of the report."""
    schema = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rlcheck report", **schema}
