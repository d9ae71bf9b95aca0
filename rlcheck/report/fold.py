"""A report of many nodes as one: what is the same on many of them is said once, what differs stays apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache

import msgspec

from rlcheck.check import Status
from rlcheck.checks import builtin_checks
from rlcheck.families import MEASURED
from rlcheck.finding import FamilyLine, Finding, Report
from rlcheck.report.by_family import importance
from rlcheck.report.wording import called

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_MAX_NAMES = 3
_MAX_HEADLINES = 3


class FoldedFinding(msgspec.Struct, frozen=True):
    """One finding and the nodes on which it was made.

    `finding` is that of the first of `nodes`; `alike` says that the others' words are the same to the last number.
    `shared` marks one about all nodes together, whose measurement is in the document of one of them.
    """

    finding: Finding
    nodes: tuple[str, ...]
    alike: bool = True
    shared: bool = False

    def where(self, everywhere: Sequence[str]) -> str:
        """Of which of `everywhere` it is true, and whose numbers are shown when they differ; "" for a shared one."""
        if self.shared:
            return ""
        return where(self.nodes, everywhere) + ("" if self.alike else f"; the numbers are those of {self.nodes[0]}")


class FoldedFamily(msgspec.Struct, frozen=True):
    """One family over all nodes: its worst status and the nodes that have it.

    `headlines` are the distinct ones, the most frequent first, each with its nodes; `more` counts those left out.
    """

    family: str
    title: str
    status: Status
    nodes: tuple[str, ...]
    headlines: tuple[tuple[str, tuple[str, ...]], ...]
    more: int
    findings: tuple[FoldedFinding, ...]

    @property
    def is_shared(self) -> bool:
        """Whether its status follows from findings about all nodes together."""
        return all(folded.shared for folded in self.findings if folded.finding.status == self.status)


def fold(report: Report) -> tuple[FoldedFamily, ...]:
    """The families of a report of several nodes, in their order, each with its findings folded."""
    families = list(dict.fromkeys(line.family for line in report.families))
    return tuple(_family(report, family) for family in families)


def where(nodes: Sequence[str], everywhere: Sequence[str]) -> str:
    """`on all 64 nodes`, `on 62 of 64 nodes, not on node7, node9`, `on node7 only`."""
    missing = [node for node in everywhere if node not in set(nodes)]
    if not missing:
        return f"on {'both' if len(nodes) == 2 else f'all {len(nodes)}'} {called(nodes)}"
    if len(nodes) <= _MAX_NAMES:
        return f"on {', '.join(nodes)} only"
    text = f"on {len(nodes)} of {len(everywhere)} nodes"
    if len(missing) <= _MAX_NAMES:
        return f"{text}, not on {', '.join(missing)}"
    return f"{text}: {', '.join(nodes[:_MAX_NAMES])}, …"


def span(nodes: Sequence[str]) -> str:
    """All nodes of a report in a few words."""
    if len(nodes) <= 4:
        return ", ".join(nodes)
    return f"{len(nodes)} nodes ({nodes[0]}, {nodes[1]}, … {nodes[-1]})"


def _family(report: Report, family: str) -> FoldedFamily:
    lines = [line for line in report.families if line.family == family]
    statuses: list[Status] = [line.status for line in lines]
    worst = min(statuses, key=importance)
    headlines = _headlines(lines)
    return FoldedFamily(
        family=family,
        title=lines[0].title,
        status=worst,
        nodes=tuple(line.node for line in lines if line.status == worst),
        headlines=headlines[:_MAX_HEADLINES],
        more=max(0, len(headlines) - _MAX_HEADLINES),
        findings=fold_findings([f for f in report.checks if f.family == family], several=len(report.nodes) > 1),
    )


def _headlines(lines: list[FamilyLine]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    exact = len({line.headline for line in lines}) <= _MAX_HEADLINES
    groups: dict[str, list[FamilyLine]] = {}
    for line in lines:
        # Free space and the like differ on every node: with many headlines, numbers do not count.
        groups.setdefault(line.headline if exact else _NUMBER.sub("#", line.headline), []).append(line)
    by_number = sorted(groups.values(), key=lambda group: -len(group))
    return tuple((group[0].headline, tuple(line.node for line in group)) for group in by_number)


def fold_findings(findings: Sequence[Finding], several: bool = False) -> tuple[FoldedFinding, ...]:
    """Findings that are the same on several nodes as one each, in the order of the first of them.

    With `several` nodes in the report, a check that was made for one of them alone is about all of them.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    times = Counter(finding.id for finding in findings)
    for finding in findings:
        groups.setdefault(_key(finding), []).append(finding)
    return tuple(
        FoldedFinding(
            finding=group[0],
            nodes=tuple(finding.node for finding in group),
            alike=len({(finding.expected, finding.found, finding.message) for finding in group}) == 1,
            shared=several and times[group[0].id] == 1 and group[0].id in _about_all(),
        )
        for group in groups.values()
    )


@cache
def _about_all() -> frozenset[str]:
    """The checks on what one command measures over all machines."""
    return frozenset(c.id for c in builtin_checks() if any(need.partition(".")[0] in MEASURED for need in c.needs))


def _key(finding: Finding) -> tuple[object, ...]:
    """What two findings share that are one: for a problem its words but for the numbers, else the check alone."""
    words = (finding.expected, finding.found, finding.message) if finding.is_problem else ()
    return finding.id, finding.status, finding.waived, *(_NUMBER.sub("#", text) for text in words)
