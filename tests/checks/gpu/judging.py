"""Judging one check as the engine does."""

from __future__ import annotations

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.finding import Finding
from rlcheck.playbook import Library

CHECKS = family_checks("GPU")

BY_ID = {check.id: check for check in CHECKS}
LIBRARY = Library()


def judge(check_id: str, facts: Facts) -> Finding:
    """The finding, after a round trip through JSON."""
    return judging.judge(decode(encode((facts,)))[0], (BY_ID[check_id],), LIBRARY)[0]
