"""What `rlcheck slow` read, for a reader: stages beside their floors, engines, traces, ranks."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.facts.slow import EngineUse, SlowFacts, StageCost, TraceUse
from rlcheck.finding import Exhibit
from rlcheck.measure.slow.answer import answer, preempted_share

_MOST_ROWS = 16


def headline(facts: Facts) -> str:
    """What to change first, in a line."""
    looked = facts.slow.value
    if looked is None:
        return ""
    found = answer(looked)
    saves = f"; a step would be up to {found.saves_s:.3g} s shorter" if found.saves_s > 0 else ""
    return found.said + saves


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """A table for each kind of file."""
    looked = facts.slow.value
    if looked is None:
        return ()
    tables = (_stages(looked), _engines(looked.engines), _traces(looked.traces), _ranks(looked), _gpus(looked))
    found = [table for table in tables if table is not None]
    if found and looked.unread:
        notes = (*found[0].notes, *(f"not read: {one}" for one in looked.unread[:_MOST_ROWS]))
        found[0] = Exhibit(title=found[0].title, columns=found[0].columns, rows=found[0].rows, notes=notes)
    return tuple(found)


def _stages(looked: SlowFacts) -> Exhibit | None:
    if not looked.stages:
        return None
    title = f"A step of {looked.step_s:.3g} s (median of {looked.steps} steps)"
    if looked.device:
        title += f", floors of {looked.device}"
    notes = tuple(f"{one.name}: {one.floor_why}" for one in looked.stages if one.floor_why)
    other = [("in no stage", f"{looked.other_s:.3g}", _part(looked.other_s, looked.step_s), "", "")]
    rows = (*map(_stage_row, looked.stages), *(other if looked.other_s > 0.02 * looked.step_s else []))
    return Exhibit(
        title=title, columns=("stage", "seconds", "of a step", "floor, s", "x floor"), rows=rows, notes=notes
    )


def _stage_row(one: StageCost) -> tuple[str, ...]:
    floor = (f"{one.floor_s:.3g}", f"{one.times:.2g}") if one.floor_s else ("", "")
    return (one.name, f"{one.seconds:.3g}", _percent(one.share), *floor)


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _part(seconds: float, whole_s: float) -> str:
    return _percent(seconds / whole_s) if whole_s > 0 else "?"


def _engines(engines: tuple[EngineUse, ...]) -> Exhibit | None:
    if not engines:
        return None
    columns = ("engine", "running", "waiting", "KV cache", "preempted", "cache hits", "passes of few tokens")
    rows = tuple(
        (
            one.source,
            _said(one.running, f"{one.running:.3g}"),
            _said(one.waiting, f"{one.waiting:.3g}"),
            _said(one.kv_usage, _percent(one.kv_usage)),
            _said(one.preemptions, f"{one.preemptions:.6g} ({preempted_share(one):.0%})"),
            _said(one.cache_hits, _percent(one.cache_hits)),
            _said(one.small_passes, _percent(one.small_passes)),
        )
        for one in engines[:_MOST_ROWS]
    )
    return Exhibit(title="Engines, by their counters", columns=columns, rows=rows, notes=())


def _said(value: float, words: str) -> str:
    return words if value >= 0 else "?"


def _traces(found: tuple[TraceUse, ...]) -> Exhibit | None:
    if not found:
        return None
    rows = tuple(
        (
            one.source,
            "?" if one.rank < 0 else str(one.rank),
            f"{one.span_s:.3g} s",
            *(_part(part, one.span_s) for part in (one.busy_s, one.exposed_s, one.data_s)),
        )
        for one in found[:_MOST_ROWS]
    )
    longest = found[0].top[:3]
    notes = (f"{found[0].source}, longest: " + ", ".join(f"{name} {value:.3g} s" for name, value in longest),)
    columns = ("trace", "rank", "time", "busy", "only collectives", "waits for data")
    return Exhibit(title="Traces", columns=columns, rows=rows, notes=notes if longest else ())


def _gpus(looked: SlowFacts) -> Exhibit | None:
    if not looked.gpus:
        return None
    order = sorted(looked.gpus, key=lambda one: one.share)
    rows = tuple((one.node, one.gpu, _percent(one.share)) for one in order[:_MOST_ROWS])
    more = len(order) - len(rows)
    notes = (f"and {more} that are busier",) if more else ()
    return Exhibit(title="GPUs, the least busy first", columns=("node", "GPU", "busy"), rows=rows, notes=notes)


def _ranks(looked: SlowFacts) -> Exhibit | None:
    if not looked.ranks:
        return None
    rows = tuple(
        (one.phase, one.source, ", ".join(f"{own:.3g}" for own in one.own[:_MOST_ROWS])) for one in looked.ranks
    )
    return Exhibit(
        title="Own work by rank, seconds", columns=("phase", "from", "ranks"), rows=rows[:_MOST_ROWS], notes=()
    )
