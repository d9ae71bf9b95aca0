"""What a rollout engine did, for a reader: its stages, its speed, where its answers ended, its template."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import Case, RolloutFacts
from rlcheck.finding import Exhibit
from rlcheck.text import GIB

_WIDTH = 42
_LINE = 62
"""With them, tables stay within 80 columns."""


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """The tables of one engine or server; nothing where none was examined."""
    rollout = facts.rollout.value
    if rollout is None:
        return ()
    return tuple(table for table in (_stages(rollout), _trials(rollout), _server(rollout)) if table.rows)


def headline(facts: Facts) -> str:
    """The engine in a line."""
    rollout = facts.rollout.value
    if rollout is None:
        return ""
    name = f"{rollout.engine or 'engine'} {rollout.version}".strip()
    where = f" at {rollout.target}" if rollout.is_server else f" on {rollout.device}" if rollout.device else ""
    if rollout.failure is not None:
        return f"{name}{where}: {rollout.failure.stage or 'start'} failed"
    speed = rollout.speed.value
    if speed is None:
        return f"{name}{where}"
    return f"{name}{where}, first token {_seconds(speed.first_token_s)}, {speed.tokens_per_s:.0f} tokens/s"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _stages(rollout: RolloutFacts) -> Exhibit:
    rows = tuple((stage.name, _seconds(stage.seconds)) for stage in rollout.stages if stage.seconds >= 1e-3)
    notes = list(rollout.notes)
    speed = rollout.speed.value
    if speed is not None:
        batch = f"{speed.num_requests} at a time, {speed.tokens_per_request} tokens each"
        notes.append(f"first token {_seconds(speed.first_token_s)}, {speed.tokens_per_s:.0f} tokens/s ({batch})")
    sleep = rollout.sleep.value
    if sleep is not None:
        sizes = (sleep.before_start_bytes, sleep.awake_bytes, sleep.asleep_bytes, sleep.again_bytes)
        before, awake, asleep, again = (f"{size / GIB:.1f}" for size in sizes)
        took = f"to sleep {_seconds(sleep.sleep_s)}, to wake {_seconds(sleep.wake_s)}"
        notes.append(f"GPU memory in GiB: {before} before, {awake} awake, {asleep} asleep, {again} again; {took}")
    elif rollout.sleep.missing is not None and not rollout.is_server and rollout.failure is None:
        notes.append(f"sleep: {rollout.sleep.missing.reason}")
    title = f"Time by stage, {rollout.target}" + (f", {rollout.weights} weights" if rollout.weights else "")
    return Exhibit(title=title, columns=("stage", "time"), rows=rows, notes=tuple(notes))


def _trials(rollout: RolloutFacts) -> Exhibit:
    cases = (*(rollout.stops.value or ()), *(rollout.lengths.value or ()))
    template = rollout.template.value
    shown = template.rendered[:600].splitlines() if template is not None else []
    notes = tuple(f"{'' if n else 'template:':9} {line[:_LINE]}" for n, line in enumerate(shown[:12]))
    rows = tuple((_mark(case), case.name, case.found[:_WIDTH]) for case in cases)
    return Exhibit(title="Where answers end", columns=("", "tried", "found"), rows=rows, notes=notes)


def _mark(case: Case) -> str:
    return "?" if not case.judged else "ok" if case.ok else "no"


def _server(rollout: RolloutFacts) -> Exhibit:
    server = rollout.server.value
    there = server.endpoints.value if server is not None else None
    rows = tuple((path, "yes" if has else "no") for path, has in (there or {}).items())
    return Exhibit(title="End points for training", columns=("end point", "there"), rows=rows)
