"""The report: what every renderer shows and what `--format json` prints."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rlcheck.check import Evidence, Status
from rlcheck.facts.base import Struct

REPORT_SCHEMA_VERSION = "1.0"
PROBLEMS: tuple[Status, ...] = ("fail", "error", "warn", "unknown")
Action = Literal["stop", "fix", "restart-without", "restart", "go"]
"""What to do next. stop: the run is lost, end it; fix: something must be fixed first, or could not be judged;
restart-without: start again, without some nodes; restart: start again as it is; go: start, or go on."""
ACTIONS: tuple[Action, ...] = ("stop", "fix", "restart-without", "restart", "go")
"""The most severe first."""
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
    next: Action = "go"
    leave_out: tuple[str, ...] = ()
    """Nodes that `restart-without` is about."""

    @property
    def is_problem(self) -> bool:
        """Whether this finding wants attention: it failed, warned or could not run, and is not waived."""
        return self.status in PROBLEMS and self.waived is None


class Next(Struct, frozen=True, omit_defaults=False):
    """What to do next, for people and programs. `nodes`: those to leave out, for restart-without alone; () where
    what was read names none. `why`: the reason in a sentence."""

    action: Action
    nodes: tuple[str, ...] = ()
    why: str = ""

    @property
    def words(self) -> str:
        """All of it in a line: `restart-without gpu-07: GPU005: A GPU does not answer`."""
        return " ".join((self.action, *self.nodes)) + (f": {self.why}" if self.why else "")


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
    next: Next = Next("fix", why="nothing was judged")
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


def next_of(findings: tuple[Finding, ...], strict: bool) -> Next:
    """What to do next by FINDINGS, in order of what to fix first; never `go` where one could not be judged."""
    open_now = [f for f in findings if f.is_problem]
    counted = [f for f in open_now if f.status == "fail" or (strict and f.status == "warn")]
    if counted:
        first = min(counted, key=lambda f: ACTIONS.index(_heeded(f)))
        nodes = (node for f in counted if f.next == first.next for node in f.leave_out)
        return Next(_heeded(first), tuple(sorted(set(nodes))), f"{first.id}: {first.headline}")
    dark = [f for f in open_now if f.status in ("unknown", "error")]
    if dark:
        number = "1 check" if len(dark) == 1 else f"{len(dark)} checks"
        return Next("fix", why=f"{number} could not be judged: {dark[0].id}: {dark[0].message}")
    if all(f.status == "skip" for f in findings):
        return Next("fix", why="nothing was judged")
    warned = sum(f.status == "warn" for f in open_now)
    return Next("go", why=f"nothing here stops a run{f', {warned} warned' if warned else ''}")


def _heeded(finding: Finding) -> Action:
    """What FINDING, which counts, calls for: whatever a playbook says, that is not to go on."""
    return "fix" if finding.next == "go" else finding.next


def report_schema() -> dict[str, object]:
    """The JSON Schema (draft 2020-12) of the report."""
    schema = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rlcheck report", **schema}
