"""Runs one check as the engine does."""

from __future__ import annotations

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.document import Facts
from rlcheck.finding import Finding
from rlcheck.playbook import Library

_LIBRARY = Library()


def judge(check_id: str, facts: Facts) -> Finding:
    check = next(check for check in family_checks(check_id[:3]) if check.id == check_id)
    return judging.judge(facts, (check,), _LIBRARY)[0]
