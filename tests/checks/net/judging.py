"""Runs one check as the engine does."""

from __future__ import annotations

from rlcheck import engine
from rlcheck.checks import family_checks
from rlcheck.facts.document import Facts
from rlcheck.playbook import Library
from rlcheck.report.model import Finding

_LIBRARY = Library()


def judge(check_id: str, facts: Facts) -> Finding:
    check = next(check for check in family_checks(check_id[:3]) if check.id == check_id)
    return engine.judge(facts, (check,), _LIBRARY)[0]
