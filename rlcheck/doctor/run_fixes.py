"""Fixes of a run's findings in the words of the framework that made the run; playbooks have verl's keys."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rlcheck.facts.document import Facts
from rlcheck.finding import Finding, Fix
from rlcheck.measure.run.names import worded


def in_own_words(findings: Iterable[Finding], facts: Facts) -> tuple[Finding, ...]:
    """FINDINGS about the run in FACTS with overrides as its framework has them; without those that it does not have."""
    framework = facts.run.value.framework if facts.run.value is not None else ""
    return tuple(
        msgspec.structs.replace(one, fixes=tuple(_fix(fix, framework) for fix in one.fixes))
        if "run" in (one.family.lower(), *(proof.fact.partition(".")[0] for proof in one.evidence))
        else one
        for one in findings
    )


def _fix(fix: Fix, framework: str) -> Fix:
    if fix.kind != "config" or not fix.command:
        return fix
    words = [worded(framework, word) for word in fix.command.split()]
    if all(words):
        return msgspec.structs.replace(fix, command=" ".join(words))
    return msgspec.structs.replace(
        fix, title=f"{fix.title} ({framework} has no such setting)", kind="advice", command=""
    )
