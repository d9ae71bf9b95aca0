"""What `rlcheck hang` saw, for a reader: who waits in what, for whom."""

from __future__ import annotations

from rlcheck.diagnose.hang.live import judge
from rlcheck.facts.document import Facts
from rlcheck.finding import Exhibit

_MOST_ROWS = 24


def headline(facts: Facts) -> str:
    """The verdict in a line."""
    looked = facts.hang.value
    if looked is None:
        return ""
    found = judge(looked)
    if found.hang is not None:
        return f"the job stands still: {found.hang.said}"
    return f"not judged: {found.doubt}" if found.doubt else found.said


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """Who waits for whom."""
    looked = facts.hang.value
    hang = None if looked is None else judge(looked).hang
    if looked is None or hang is None or not hang.waits:
        return ()
    rows = tuple((wait.who, ", ".join(wait.whom[:6]) or "none seen", wait.call) for wait in hang.waits[:_MOST_ROWS])
    left = len(hang.waits) - len(rows)
    title = f"Who waits for whom: {len(looked.processes)} processes, looked at for {looked.watched_s:.0f} s"
    notes = (f"{left} more wait",) if left else ()
    return (Exhibit(title=title, columns=("who", "waits for", "in"), rows=rows, notes=notes),)
