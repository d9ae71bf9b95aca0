"""What `rlcheck resume` read, for a reader: from where the run can go on, and what each checkpoint holds."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.facts.resume import Saved
from rlcheck.finding import Exhibit
from rlcheck.measure.resume.answer import answer
from rlcheck.text import size_label

_MOST_ROWS = 12


def headline(facts: Facts) -> str:
    """The answer in a line."""
    looked = facts.resume.value
    return "" if looked is None else answer(looked).said


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """Each checkpoint, the newest first."""
    looked = facts.resume.value
    if looked is None or not looked.checkpoints:
        return ()
    rows = tuple(_row(one) for one in reversed(looked.checkpoints[-_MOST_ROWS:]))
    left = len(looked.checkpoints) - len(rows)
    notes = (f"to resume from it: {words}" if (words := answer(looked).words) else "none can be resumed",)
    more = (f"{left} of earlier steps are not shown",) if left else ()
    read = "every file of the one to resume from was read" if looked.read_all else "ends and headers were read"
    title = f"Checkpoints in {looked.place} ({read})"
    return (
        Exhibit(title=title, columns=("step", "state", "ranks", "size", "lacks"), rows=rows, notes=(*notes, *more)),
    )


def _row(one: Saved) -> tuple[str, ...]:
    state = one.unfinished or (f"{one.damages[0].file} {one.damages[0].why}" if one.damages else "whole")
    ranks = ", ".join(str(world) for world in one.world_sizes) or "?"
    return str(one.step), state, ranks, size_label(one.bytes), ", ".join(dict.fromkeys(lack.part for lack in one.lacks))
