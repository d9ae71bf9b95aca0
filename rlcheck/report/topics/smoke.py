"""What a trial step did, for a reader: how long each part took."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.finding import Exhibit


def headline(facts: Facts) -> str:
    """The step in a line."""
    smoke = facts.smoke.value
    if smoke is None:
        return ""
    if smoke.failure is not None:
        return f"no step: {smoke.failure.stage or 'start'} failed"
    return f"one step of {smoke.train_batch_size} prompts in {smoke.seconds:.1f} s"


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """Its times; nothing where there was no step."""
    smoke = facts.smoke.value
    if smoke is None or not smoke.stages:
        return ()
    rows = tuple((stage.name, f"{stage.seconds:.1f} s") for stage in smoke.stages)
    changed = f"changed for it: {' '.join(smoke.overrides[:3])} and {len(smoke.overrides) - 3} more"
    notes = (changed,) if len(smoke.overrides) > 3 else ()
    return (Exhibit(title="Parts of the trial run", columns=("part", "time"), rows=rows, notes=notes),)
