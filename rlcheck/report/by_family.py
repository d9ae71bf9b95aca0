"""What the facts of each family are shown as: one line each, and tables that the findings rest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from rlcheck.check import Status
from rlcheck.facts.document import Facts
from rlcheck.families import FAMILIES, Family
from rlcheck.finding import STATUS_ORDER, Exhibit, FamilyLine, Finding


def family_lines(nodes: Sequence[Facts], findings: Sequence[Finding], titles: dict[str, str]) -> tuple[FamilyLine, ...]:
    """Return one line for each node and each family that has findings on it.

    Args:
        nodes: the facts documents.
        findings: what was found.
        titles: the families' titles by ID, those of plug-ins included.
    """
    lines: list[FamilyLine] = []
    for facts in nodes:
        for family, title in titles.items():
            mine = [f for f in findings if f.family == family and f.node == facts.node]
            if mine:
                statuses: list[Status] = [f.status for f in mine if not f.waived] or ["pass"]
                worst = min(statuses, key=importance)
                lines.append(FamilyLine(family=family, title=title, status=worst, headline=headline(family, facts),
                                        node=facts.node))  # fmt: skip
    return tuple(lines)


def importance(status: Status) -> int:
    """A family with something that passed has passed, whatever else was only worth knowing or did not apply."""
    return STATUS_ORDER.index("skip") if status == "info" else STATUS_ORDER.index(status)


def headline(family: str, facts: Facts) -> str:
    """Return what is there, in a few words; "" for a family that has no such line."""
    if family not in FAMILIES:
        return ""
    return next((line for say in _parts(FAMILIES[family], "headline") if (line := say(facts))), "")


def exhibits(nodes: tuple[Facts, ...]) -> tuple[Exhibit, ...]:
    """Return the tables of all documents, in the order of documents and families."""
    return tuple(
        table
        for facts in nodes
        for family in FAMILIES.values()
        if any(getattr(facts, section.name).value is not None for section in family.sections)
        for show in _parts(family, "exhibits")
        for table in show(facts)
    )


def _parts(family: Family, name: str) -> list[Callable[[Facts], Any]]:
    """Return the functions of that name in the family's modules of `rlcheck.report.topics`."""
    modules = [import_module(f"rlcheck.report.topics.{topic}") for topic in family.shown_by]
    return [vars(module)[name] for module in modules if name in vars(module)]
