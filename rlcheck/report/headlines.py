"""The one line for each family: its worst status and, in a few words, what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlcheck.check import Status
from rlcheck.facts.document import Facts
from rlcheck.report.model import STATUS_ORDER, FamilyLine, Finding


def family_lines(
    nodes: Sequence[Facts], findings: Sequence[Finding], families: dict[str, str]
) -> tuple[FamilyLine, ...]:
    """One line for each node and each family that has findings on it."""
    lines: list[FamilyLine] = []
    for facts in nodes:
        for family, title in families.items():
            mine = [f for f in findings if f.family == family and f.node == facts.node]
            if mine:
                statuses: list[Status] = [f.status for f in mine if not f.waived] or ["pass"]
                worst = min(statuses, key=STATUS_ORDER.index)
                headline = HEADLINES.get(family, _none)(facts)
                lines.append(FamilyLine(family=family, title=title, status=worst, headline=headline, node=facts.node))
    return tuple(lines)


def _none(facts: Facts) -> str:
    return ""


HEADLINES: dict[str, Callable[[Facts], str]] = {}
