"""What a memory prediction shows a reader: bars, who holds what, limits, what to change, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MeasuredPhase, MemoryProfile, Owner, Phase
from rlcheck.finding import Exhibit
from rlcheck.measure.memory.summary import KINDS, by_kind, compared, fits, gib, host_peak, owner_name
from rlcheck.report.topics.memory_bars import TITLES, bars, legend
from rlcheck.text import GIB

_SHORT = {
    "weights": "param", "gradients": "grad", "optimizer": "optim", "activations": "activ", "logits": "logit",
    "unsharded": "layer", "buffers": "buf", "kv_cache": "KV", "graphs": "graph", "engine": "eng", "context": "ctx",
    "fragments": "frag", "slack": "slack",
}  # fmt: skip
_MAX_KINDS = 8
"""Columns of kinds that fit into 80 characters beside the phase and its sum."""
_SEEN_BYTES = GIB // 20
_MAX_OWNERS = 8
_MAX_CHANGES = 8
_MAX_KEYS = 3


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """The tables of a prediction; nothing where none was made."""
    memory = facts.memory.value
    if memory is None or not memory.phases:
        return ()
    run = facts.config.value
    found = [_bars(memory), _by_owner(memory), _peak(memory), *_host(memory), *_limits(memory, run)]
    return (*found, *_measured(memory), *_changes(memory), *_assumed(memory, run))


def headline(facts: Facts) -> str:
    """The run in a line: model, GPU, peak and who holds most of it."""
    memory = facts.memory.value
    if memory is None or memory.peak is None:
        return ""
    size = memory.parameters.get("actor", 0)
    model = f"{memory.architecture or 'model'} of {_count(size)}" if size else memory.architecture
    gpus = f"{memory.num_nodes} x " if memory.num_nodes > 1 else ""
    where = f"{gpus}{memory.gpus_per_node} x {memory.gpu} ({gib(memory.gpu_bytes)})"
    peak = memory.peak
    share = peak.num_bytes / memory.usable_bytes if memory.usable_bytes else 0.0
    verdict = "" if fits(memory) else ", does not fit"
    return f"{model} on {where}: peak {gib(peak.num_bytes)} in {peak.name}, {share:.0%} of what is usable{verdict}"


def _count(number: int) -> str:
    """Parameters as people say them: `7.6 B`, `494 M`, `92 k`."""
    if number >= 1e9:
        return f"{number / 1e9:.1f} B"
    return f"{number / 1e6:.0f} M" if number >= 1e6 else f"{number / 1e3:.0f} k"


def _number(num_bytes: float) -> str:
    """GiB in at most five characters; "" for what would be 0.0."""
    size = num_bytes / GIB
    return f"{size:.0f}" if abs(size) >= 1000 else f"{size:.1f}" if abs(size) >= 0.05 else ""


def _name(phase: Phase) -> str:
    return phase.name if phase.pool == "train" else f"{phase.name} {'*' if phase.pool == 'rollout' else '+'}"


def _bars(memory: MemoryProfile) -> Exhibit:
    drawn = bars(memory.phases, memory.usable_bytes, memory.gpu_bytes)
    rows = tuple(
        (_name(phase), line, _number(phase.num_bytes), _share(phase, memory))
        for phase, line in zip(memory.phases, drawn, strict=True)
    )
    notes = [legend(memory.phases)]
    if any(phase.pool == "rollout" for phase in memory.phases):
        notes.append("* on the GPUs of the rollout engine")
    if own := {phase.pool for phase in memory.phases} - {"train", "rollout"}:
        notes.append(f"+ on GPUs of their own: {', '.join(sorted(own))}")
    title = f"One {memory.gpu} with {gib(memory.gpu_bytes)}, {gib(memory.usable_bytes)} of it usable"
    return Exhibit(title=title, columns=("phase", "", "GiB", "%"), rows=rows, notes=tuple(notes))


def _share(phase: Phase, memory: MemoryProfile) -> str:
    return f"{100 * phase.num_bytes / memory.usable_bytes:.0f}" if memory.usable_bytes else ""


def _by_owner(memory: MemoryProfile) -> Exhibit:
    """Phase by kind in GiB; the smallest kinds are summed up where all of them would be too wide."""
    sizes = [by_kind(phase) for phase in memory.phases]
    most = {kind: max(one.get(kind, 0) for one in sizes) for kind in dict.fromkeys([*KINDS, *_others(sizes)])}
    seen = [kind for kind, size in most.items() if size >= _SEEN_BYTES]
    shown = [kind for kind in seen if kind in sorted(seen, key=most.__getitem__, reverse=True)[:_MAX_KINDS]]
    rest = [kind for kind in most if kind not in shown]
    rows: list[tuple[str, ...]] = []
    for phase, one in zip(memory.phases, sizes, strict=True):
        other = _number(sum(one.get(kind, 0) for kind in rest))
        rows.append((_name(phase), *(_number(one.get(kind, 0)) for kind in shown), other, _number(phase.num_bytes)))
    if not any(row[-2] for row in rows):
        rows = [(*row[:-2], row[-1]) for row in rows]
        columns = ("phase", *(_SHORT.get(kind, kind[:5]) for kind in shown), "sum")
    else:
        columns = ("phase", *(_SHORT.get(kind, kind[:5]) for kind in shown), "other", "sum")
    return Exhibit(title="Memory by owner, GiB", columns=columns, rows=tuple(rows), notes=_short_names(shown))


def _short_names(kinds: Sequence[str]) -> tuple[str, ...]:
    """What the short headings stand for, where that is not plain."""
    pairs = ((_SHORT.get(kind, kind), TITLES.get(kind, kind)) for kind in kinds)
    words = [f"{short}: {title}" for short, title in pairs if not title.startswith(short)]
    return (", ".join(words),) if words else ()


def _others(sizes: Sequence[dict[str, int]]) -> list[str]:
    return sorted({kind for one in sizes for kind in one} - set(KINDS))


def _peak(memory: MemoryProfile) -> Exhibit:
    peak = memory.peak
    assert peak is not None
    owners = sorted(peak.owners, key=lambda owner: owner.num_bytes, reverse=True)
    rows = [
        (owner_name(owner), f"{owner.num_bytes / GIB:.2f}", f"{100 * owner.num_bytes / max(peak.num_bytes, 1):.0f}")
        for owner in owners[:_MAX_OWNERS]
    ]
    rest = sum(owner.num_bytes for owner in owners[_MAX_OWNERS:])
    if rest:
        rows.append((f"{len(owners) - _MAX_OWNERS} more", f"{rest / GIB:.2f}", f"{100 * rest / peak.num_bytes:.0f}"))
    left = memory.usable_bytes - peak.num_bytes
    state = f"{gib(left)} are left" if left >= 0 else f"{gib(-left)} more than there is"
    return Exhibit(title=f"The peak, {peak.name}: {gib(peak.num_bytes)}, {state}", columns=("owner", "GiB", "%"),
                   rows=tuple(rows))  # fmt: skip


def _host(memory: MemoryProfile) -> tuple[Exhibit, ...]:
    fullest = host_peak(memory)
    if fullest is None or fullest.num_bytes < _SEEN_BYTES:
        return ()
    rows = tuple((phase.name, _number(phase.num_bytes) or "0.0", _largest(phase)) for phase in memory.host_phases)
    has = f" of {gib(memory.host_bytes)}" if memory.host_bytes else ", its memory is not known (--host-mem)"
    title = f"RAM of a node: at most {gib(fullest.num_bytes)}{has}"
    return (Exhibit(title=title, columns=("phase", "GiB", "most of it"), rows=rows),)


def _largest(phase: Phase) -> str:
    owners = sorted(phase.owners, key=lambda owner: owner.num_bytes, reverse=True)
    return ", ".join(f"{owner_name(owner)} {gib(owner.num_bytes)}" for owner in owners[:2] if owner.num_bytes)


def _limits(memory: MemoryProfile, run: ConfigFacts | None) -> tuple[Exhibit, ...]:
    """The largest settings that fit, beside what they are now."""
    limits, spec = memory.limits, run.spec if run is not None else None
    actor = spec.actor if spec is not None else None
    rows: list[tuple[str, str, str]] = []
    if limits.micro_batch_size >= 0:
        now = "" if actor is None or actor.dynamic_batch else str(actor.micro_batch_size or "")
        rows.append(("actor's micro batch, samples a GPU", now, _limit(limits.micro_batch_size)))
    if limits.max_tokens >= 0:
        now = str(actor.max_tokens) if actor is not None and actor.dynamic_batch else ""
        rows.append(("actor's tokens a GPU, with a dynamic batch", now, _limit(limits.max_tokens)))
    if limits.memory_utilization >= 0:
        now = f"{spec.rollout.memory_utilization:.2f}" if spec is not None else ""
        most = f"{limits.memory_utilization:.2f}" if limits.memory_utilization else "none fits"
        rows.append(("engine's share of the GPU", now, most))
    notes: list[str] = []
    if limits.kv_tokens >= 0:
        many = limits.concurrent_sequences
        sequences = f": {many} sequence{'' if many == 1 else 's'} of full length at a time" if many >= 0 else ""
        notes.append(f"The KV cache of one engine holds {limits.kv_tokens:,} tokens{sequences}.")
    if not rows and not notes:
        return ()
    title = "Limits: the largest that fits, all else as it is" if rows else "Limits"
    return (Exhibit(title=title, columns=("setting", "now", "at most") if rows else (), rows=tuple(rows),
                    notes=tuple(notes)),)  # fmt: skip


def _limit(value: int) -> str:
    return str(value) if value else "none fits"


_MEASURABLE = {"weights": "state", "gradients": "state", "optimizer": "state", "context": "contexts"}


def _measured(memory: MemoryProfile) -> tuple[Exhibit, ...]:
    if not memory.measured:
        return ()
    rows: list[tuple[str, ...]] = [
        (one.name, _number(phase.needed_bytes), _number(one.needed_bytes), f"{100 * error:+.1f}", _missed(phase, one))
        for phase, one, error in compared(memory)
    ]
    rows += [(one.name, "", "", "", one.error) for one in memory.measured if one.error]
    known = {row[0] for row in rows}
    rows += [(one.name, "", _number(one.peak_bytes), "", "not predicted") for one in memory.measured
             if one.name not in known]  # fmt: skip
    columns = ("phase", "predicted", "measured", "%", "what differs most")
    return (Exhibit(title="Predicted and measured, GiB on one GPU", columns=columns, rows=tuple(rows)),)


def _missed(phase: Phase, one: MeasuredPhase) -> str:
    """What the prediction is farthest off in, if owners were measured."""
    if not one.owners:
        return ""
    predicted, found = _measurable(phase.owners), _measurable(one.owners)
    gaps = {what: predicted.get(what, 0) - found[what] for what in found}
    what = max(gaps, key=lambda name: abs(gaps[name]))
    return f"{what} {gaps[what] / GIB:+.1f}" if abs(gaps[what]) >= _SEEN_BYTES else ""


def _measurable(owners: Sequence[Owner]) -> dict[str, int]:
    """Bytes by what can be distinguished on a device: state, what passes hold, the engine, contexts; no slack."""
    found: dict[str, int] = {}
    for owner in owners:
        if owner.kind != "slack":
            what = "engine" if owner.role == "rollout" else _MEASURABLE.get(owner.kind, "passes")
            found[what] = found.get(what, 0) + owner.num_bytes
    return found


def _changes(memory: MemoryProfile) -> tuple[Exhibit, ...]:
    """What would lower the peak, best first, with what to type below the table."""
    if not memory.changes:
        return ()
    shown = memory.changes[:_MAX_CHANGES]
    rows = tuple(
        (str(number), change.title, _number(change.peak_bytes), "yes" if change.fits else "no", _time(change.slowdown))
        for number, change in enumerate(shown, 1)
    )
    notes = [f"{number}: {' '.join(change.overrides)}" for number, change in enumerate(shown, 1)]
    more = len(memory.changes) - len(shown)
    notes += [f"{more} more in --format json"] if more else []
    title = "What to change: the time of a step is an estimate"
    return (Exhibit(title=title, columns=("", "change", "peak GiB", "fits", "time"), rows=rows, notes=tuple(notes)),)


def _time(slowdown: float) -> str:
    return "same" if abs(slowdown - 1) < 0.005 else f"x {slowdown:.2f}"


def _assumed(memory: MemoryProfile, run: ConfigFacts | None) -> tuple[Exhibit, ...]:
    """What the prediction rests on besides the config: what was left open there, what the arithmetic leaves out."""
    notes = list(memory.notes)
    if run is not None:
        notes += [*run.fallbacks, *run.notes]
        wrong = list(dict.fromkeys(problem.key for problem in run.problems))
        more = " and more" if len(wrong) > _MAX_KEYS else ""
        notes += [f"rlcheck config has something to say about {', '.join(wrong[:_MAX_KEYS])}{more}"] if wrong else []
    return (Exhibit(title="What this rests on", notes=tuple(notes)),) if notes else ()
