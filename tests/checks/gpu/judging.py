"""Judging one check as the engine does."""

from __future__ import annotations

from rlcheck import engine
from rlcheck.checks.gpu import CHECKS
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.playbook import Library
from rlcheck.report.model import Finding

BY_ID = {check.id: check for check in CHECKS}
LIBRARY = Library()


def judge(check_id: str, facts: Facts) -> Finding:
    """The finding, after a round trip through JSON."""
    return engine.judge(decode(encode((facts,)))[0], (BY_ID[check_id],), LIBRARY)[0]
