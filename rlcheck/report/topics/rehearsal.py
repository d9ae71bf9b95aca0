"""What a rehearsed kill and resume did, for a reader."""

from __future__ import annotations

from rlcheck.facts.document import Facts


def headline(facts: Facts) -> str:
    """The rehearsal in a line."""
    found = facts.rehearsal.value
    if found is None:
        return ""
    if found.failure is not None:
        return f"no rehearsal: {found.failure.stage or 'start'} failed"
    start = f"resumed from step {found.resumed_from}" if found.resumed_from else "started over"
    equal = "" if found.first is not None or not found.resumed_from else ", equal to the bit"
    return f"killed after step {found.killed_after}, {start}{equal}, in {found.seconds:.0f} s"
