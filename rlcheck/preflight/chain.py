"""Goes through the links: looks, judges, and stops where the next one cannot hold."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from rlcheck import judging
from rlcheck.check import Check
from rlcheck.doctor import clinic
from rlcheck.facts.base import Fact, Missing, MissingKind, Struct, why_missing
from rlcheck.facts.document import Facts
from rlcheck.families import OF_MACHINES
from rlcheck.finding import Exhibit, Finding, Next, Report, Waiver
from rlcheck.measure.cluster.boards import Awaited
from rlcheck.preflight.links import LINKS, Link
from rlcheck.preflight.state import Request, State
from rlcheck.text import listed

Verdict = Literal["holds", "fails", "not known", "does not apply", "not tried", "left out"]
_MARKS: dict[str, str] = {"holds": "✓", "fails": "✗", "not known": "?"}
_MOST_IDS = 4


class Step(Struct, frozen=True, omit_defaults=False):
    """How one link came out. `failed`: IDs of the checks that failed; `seconds`: that looking and judging took."""

    link: str
    title: str
    verdict: Verdict
    reason: str = ""
    failed: tuple[str, ...] = ()
    seconds: float = 0.0

    def line(self) -> str:
        """Verdict and reason."""
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


@dataclass(frozen=True)
class Result:
    """What the whole chain found. `nodes`: the facts documents, this machine's first."""

    report: Report
    nodes: tuple[Facts, ...]
    steps: tuple[Step, ...]


Look = Callable[[Request, State, Awaited], None]


def run_chain(
    request: Request,
    looks: Mapping[str, Look],
    doctor: clinic.Doctor,
    awaited: Awaited,
    told: Callable[[Step], None] = lambda _: None,
    *,
    command: str = "preflight",
) -> Result:
    """Go through all links.

    Args:
        request: see `Request`.
        looks: who looks at each link, by its name.
        doctor: with the checks of all families.
        awaited: told what is waited for.
        told: called with each link when it is done.
        command: for the report's head.

    Raises:
        SelectionError: a waived ID does not exist.
    """
    started = time.perf_counter()
    ignored, notes = clinic.waived(doctor, request.settings, request.ignore)
    with tempfile.TemporaryDirectory(prefix="rlcheck-preflight-") as directory:
        walk = _Walk(request, doctor, ignored, State(Facts(), directory))
        if LINKS[0].name in request.left_out:  # not judged, but the links that are wanted rest on its facts
            looks[LINKS[0].name](request, walk.state, awaited)
        for link in LINKS:
            told(walk.go(link, looks, awaited))
    state, strict = walk.state, request.strict or request.settings.strict
    nodes = (state.facts, *state.others)
    report = clinic.make_report(doctor, nodes, tuple(walk.findings), command=command, strict=strict, started=started,
                                notes=(*notes, *state.notes))  # fmt: skip
    report = msgspec.structs.replace(
        report,
        exhibits=(*report.exhibits, chain_table(walk.steps)),
        data={**report.data, "preflight": [msgspec.to_builtins(step) for step in walk.steps]},
        next=_next(report.next, walk.steps),
    )
    return Result(report, nodes, tuple(walk.steps))


def _next(judged: Next, steps: list[Step]) -> Next:
    """What to do next: no `go` over a link that nobody could look at."""
    dark = next((step for step in steps if step.verdict in ("not known", "not tried")), None)
    return Next("fix", why=f"{dark.title}: {dark.line()}") if dark is not None and judged.action == "go" else judged


class _Walk:
    """The links so far."""

    def __init__(self, request: Request, doctor: clinic.Doctor, ignored: Mapping[str, Waiver], state: State) -> None:
        self.request, self.doctor, self.ignored, self.state = request, doctor, ignored, state
        self.steps: list[Step] = []
        self.findings: list[Finding] = []

    def go(self, link: Link, looks: Mapping[str, Look], awaited: Awaited) -> Step:
        """Look at one link and judge it, unless it is not wanted or cannot hold."""
        began = time.perf_counter()
        blocked = self._blocked(link)
        if link.name in self.request.left_out:
            step = Step(link.name, link.title, "left out", self.request.left_out[link.name])
        elif blocked:
            step = Step(link.name, link.title, "not tried", blocked)
        else:
            awaited.on(link.title)
            before = len(self.state.others)
            looks[link.name](self.request, self.state, awaited)
            found = self._judged(link, self.state.others[before:])
            self.findings += found
            step = self._step(link, found, time.perf_counter() - began)
        self.steps.append(step)
        return step

    def _blocked(self, link: Link) -> str:
        """Why the link cannot hold, "" if it can."""
        for need in link.needs:
            earlier = next(step for step in self.steps if step.link == need.link)
            if not need.when(self.request.run):
                continue
            failed = [id for id in earlier.failed if not need.failures or id in need.failures
                      or self._family(id) in need.failures]  # fmt: skip
            if failed:
                return f"because of {listed(failed, _MOST_IDS)} ({earlier.title})"
            if earlier.verdict == "not tried" and not need.failures:
                return f"because {earlier.title} was not tried"
        return ""

    def _family(self, id: str) -> str:
        return next((check.family for check in self.doctor.checks if check.id == id), "")

    def _judged(self, link: Link, others: tuple[Facts, ...]) -> tuple[Finding, ...]:
        """The findings of a link; machines that came with it are judged as machines."""
        checks = [check for check in self.doctor.checks if _belongs(check, link)]
        missing = self._missing(link)
        # Where somebody should have seen and could not, that is said; what there is not needs no word of each check.
        tried = missing is None or missing.kind not in (MissingKind.NOT_COLLECTED, MissingKind.ABSENT)
        named = [check.id for check in checks if tried and _roots(check) & {link.section}]
        mine = clinic.measured(checks, self.state.facts, named)
        found = judging.judge(self.state.facts, mine, self.doctor.library, self.ignored)
        machines = [check for check in self.doctor.checks if check.family in OF_MACHINES]
        return found + tuple(
            finding
            for facts in others
            for finding in judging.judge(facts, clinic.measured(machines, facts), self.doctor.library, self.ignored)
        )

    def _missing(self, link: Link) -> Missing | None:
        if not link.section:
            return None
        section: Fact[Any] = getattr(self.state.facts, link.section)
        return why_missing(section)

    def _step(self, link: Link, found: tuple[Finding, ...], seconds: float) -> Step:
        failed = tuple(dict.fromkeys(f.id for f in found if f.status == "fail" and f.waived is None))
        seconds = round(seconds, 3)
        if failed:
            return Step(link.name, link.title, "fails", listed(failed, _MOST_IDS), failed, seconds)
        missing = self._missing(link)
        reason = missing.reason if missing is not None else ""
        if missing is not None and missing.kind not in (MissingKind.ABSENT, MissingKind.NOT_COLLECTED):
            return Step(link.name, link.title, "not known", reason, (), seconds)
        if not any(finding.status in ("pass", "info", "warn") for finding in found):
            doubtful = missing is None or missing.kind is not MissingKind.ABSENT
            words = reason or next((finding.message for finding in found), "there is nothing to judge")
            return Step(link.name, link.title, "not known" if doubtful else "does not apply", words, (), seconds)
        warned = sum(finding.status == "warn" and finding.waived is None for finding in found)
        counted = f"{warned} warning{'' if warned == 1 else 's'}" if warned else ""
        return Step(link.name, link.title, "holds", "; ".join(filter(None, (counted, reason))), (), seconds)


def _belongs(check: Check, link: Link) -> bool:
    measured = [one for one in LINKS if one.section and one.section in _roots(check) and not one.families]
    if measured:
        return measured[0] is link
    ours = [one for one in LINKS if check.family in one.families]
    return link is (ours[0] if ours else LINKS[0])


def _roots(check: Check) -> set[str]:
    return {need.partition(".")[0] for need in check.needs}


def chain_table(steps: list[Step]) -> Exhibit:
    """The links with their verdicts and times."""
    rows = tuple(
        (_MARKS.get(step.verdict, "–"), step.title, step.line(), f"{step.seconds:.1f} s" if step.seconds else "")
        for step in steps
    )
    return Exhibit(title="Chain", columns=("", "link", "verdict", "time"), rows=rows)
