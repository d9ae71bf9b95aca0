"""The tables of a measurement: bandwidth by collective and size, and the pairs of nodes as a heat map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Sample, devices_of
from rlcheck.facts.document import Facts
from rlcheck.finding import Exhibit
from rlcheck.measure.collectives.attribution import Pair, pair_scores
from rlcheck.measure.collectives.expect import expectation, odd_limits
from rlcheck.report.topics.phrases import joined, why
from rlcheck.text import size_label, sparkline

_MAX_BARS = 12
_MAX_NUMBERS = 12
"""Up to so many nodes the pairs are numbers, above it symbols."""
_MAX_COLUMNS, _LINE_WIDTH = 64, 76
_MIDDLE_SIZES = (1 << 20, 64 << 20)
_NAME_WIDTH = 12
_FINE, _LOW, _ODD, _BROKEN = ".", "o", "X", "!"


def headline(facts: Facts) -> str:
    """Return the NCCL library, its settings and what was measured, in a line."""
    nccl = facts.nccl.value
    if nccl is None:
        return why(facts.nccl)
    linkage = nccl.torch.value
    if linkage is None:
        library = "torch here does not use NCCL"
    else:
        library = f"NCCL {linkage.loaded_version or '(version not known)'}"
    prefixes = ("NCCL_", "RCCL_")
    # NCCL_VERSION is what NVIDIA's images say of themselves; no library reads it.
    num_set = sum(name.startswith(prefixes) and name != "NCCL_VERSION" for name in facts.environ.value or {})
    num_in_files = sum(len(file.settings.value or ()) for file in nccl.conf_files)
    return joined(
        library,
        f"{num_set} NCCL variable{'s' if num_set > 1 else ''} set" if num_set else "no NCCL variable set",
        f"{num_in_files} settings in files" if num_in_files else "",
        _measured(facts),
    )


def _measured(facts: Facts) -> str:
    """How many ranks ran collectives on this machine, "" when none did."""
    run = facts.collectives.value
    # Of several nodes the measurement is in one document: there it would look as if it were about that node.
    if run is None or len({rank.node for rank in run.ranks}) != 1:
        return ""
    return f"{len(run.ranks)} rank{'' if len(run.ranks) == 1 else 's'} measured with {run.backend}"


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """What was measured, for a reader at 80 columns; nothing where nothing was."""
    run = facts.collectives.value
    if run is None:
        return ()
    inner = [group for group in run.groups if len(group.nodes) == 1 and group.samples]
    tables = [_table(facts, f"Collectives over {_who(run, group)}", [group]) for group in run.groups
              if len(group.nodes) > 1 and group.phase != "pair" and group.samples]  # fmt: skip
    if inner:
        where = inner[0].nodes[0] if len(inner) == 1 else f"each of {len(inner)} nodes"
        tables.append(_table(facts, f"Collectives inside {where} ({devices_of(run, inner[0])})", inner))
    found = [*tables, _matrix(run)]
    return tuple(exhibit for exhibit in found if exhibit.rows) or _nothing_between(run)


def _nothing_between(run: CollectiveFacts) -> tuple[Exhibit, ...]:
    """A rank alone measures nothing: said, lest its report be read as "the links are well"."""
    if len(run.ranks) != 1 or run.lost or not run.groups:
        return ()
    rank = run.ranks[0]
    note = (
        "One rank alone has nobody to talk to: collectives start and their results are right or named above, but no "
        "bandwidth was measured. Take more machines (--head-ip, --hosts) or --ranks-per-node."
    )
    return (Exhibit(title=f"Collectives inside {rank.node} (1 x {rank.device})", columns=(), rows=(), notes=(note,)),)


def bandwidths(values: Sequence[float]) -> str:
    """Blocks for values from 0 to their maximum, at most twelve; the last value is always shown."""
    if len(values) > _MAX_BARS:
        step = (len(values) - 1) / (_MAX_BARS - 1)
        values = [values[round(i * step)] for i in range(_MAX_BARS)]
    top = max(values, default=0.0)
    if top <= 0:
        return ""
    return sparkline(value / top for value in values)


def collectives_in(groups: Iterable[GroupRun]) -> list[str]:
    """The names of the collectives, in the order in which they were run."""
    return list(dict.fromkeys(sample.collective for group in groups for sample in group.samples))


def middle_curve(groups: Iterable[GroupRun], collective: str) -> dict[int, tuple[float, float]]:
    """Size in bytes to (bus bandwidth in bytes/s, seconds): the middle of the groups, rising in size."""
    values: dict[int, list[Sample]] = {}
    for group in groups:
        for sample in group.samples:
            if sample.collective == collective:
                values.setdefault(sample.num_bytes, []).append(sample)
    return {
        size: (median(s.busbw for s in values[size]), median(s.seconds for s in values[size]))
        for size in sorted(values)
    }


def _who(run: CollectiveFacts, group: GroupRun) -> str:
    return f"{len(group.nodes)} nodes ({devices_of(run, group)})"


def _table(facts: Facts, title: str, groups: Sequence[GroupRun]) -> Exhibit:
    curves = {name: middle_curve(groups, name) for name in collectives_in(groups)}
    sizes = sorted({size for curve in curves.values() for size in curve})
    nearest = dict.fromkeys(_nearest(sizes, wanted) for wanted in _MIDDLE_SIZES)
    shown = [size for size in nearest if sizes[0] < size < sizes[-1]]
    rows: list[tuple[str, ...]] = []
    derived: set[str] = set()
    without: list[str] = []
    for collective, curve in curves.items():
        largest = max(curve)
        expected = expectation(facts, groups[0], collective, largest)
        if expected is not None and expected.derived:
            derived.add(expected.derived)
        if expected is None:
            without.append(collective)
        rows.append(
            (
                collective,
                f"{curve[min(curve)][1] * 1e6:.0f} µs",
                *(_speed(curve[size][0]) if size in curve else "-" for size in shown),
                _speed(curve[largest][0]),
                _speed(max(busbw for busbw, _ in curve.values())),
                f"≥ {_speed(expected.busbw)}" if expected is not None else "-",
                bandwidths([busbw for busbw, _ in curve.values()]),
            )
        )
    judged = len(without) < len(curves)
    notes = [
        f"Bus bandwidth in GB/s, as nccl-tests counts it, from {size_label(sizes[0])} to {size_label(sizes[-1])}; the "
        "first column is the time of the smallest size." + (" Expected is meant for the largest." if judged else "")
    ]
    notes += [f"The middle of {len(groups)} nodes."] if len(groups) > 1 else []
    notes += [f"Expected: {text}." for text in sorted(derived)]
    if without:
        whose = ", ".join(without) if judged else _kinds(facts, groups[0])
        notes.append(f"No expectation is on record for {whose}: shown, not judged.")
    columns = (
        "collective",
        size_label(sizes[0]),
        *map(size_label, shown),
        size_label(sizes[-1]),
        "best",
        "expected",
        "over size",
    )
    if not judged:
        columns, rows = _without_expected(columns), [_without_expected(row) for row in rows]
    return Exhibit(title=title, columns=columns, rows=tuple(rows), notes=tuple(notes))


def _without_expected(row: tuple[str, ...]) -> tuple[str, ...]:
    return (*row[:-2], row[-1])


def _kinds(facts: Facts, group: GroupRun) -> str:
    run = facts.collectives.value
    kinds = sorted({rank.device for rank in run.ranks if rank.rank in group.ranks}) if run is not None else []
    between = " between nodes" if len(group.nodes) > 1 else ""
    return f"{' or '.join(kinds) or 'these devices'}{between}"


def _nearest(sizes: Sequence[int], wanted: int) -> int:
    return min(sizes, key=lambda size: abs(size.bit_length() - wanted.bit_length()))


def _speed(bytes_per_s: float) -> str:
    giga = bytes_per_s / 1e9
    return f"{giga:.0f}" if giga >= 100 else f"{giga:.1f}" if giga >= 10 else f"{giga:.2g}"


def pair_bandwidths(run: CollectiveFacts) -> dict[Pair, float]:
    """Each pair of nodes and its best bandwidth in bytes/s; 0 for one that hung or failed."""
    found: dict[Pair, float] = {}
    for group in run.groups:
        if group.phase == "pair" and len(group.nodes) == 2:
            one, two = sorted(group.nodes)
            found[one, two] = max((sample.busbw for sample in group.samples), default=0.0)
    return found


def _matrix(run: CollectiveFacts) -> Exhibit:
    values = pair_bandwidths(run)
    nodes = sorted({node for pair in values for node in pair})
    if len(nodes) <= 2:
        return Exhibit(title="")
    return _numbers(values, nodes) if len(nodes) <= _MAX_NUMBERS else _symbols(run, values, nodes)


def _numbers(values: dict[Pair, float], nodes: Sequence[str]) -> Exhibit:
    top = max(values.values(), default=0.0)
    unit, name = (1e9, "GB/s") if top >= 1e9 else (1e6, "MB/s")

    def cell(one: str, two: str) -> str:
        value = values.get((min(one, two), max(one, two)))
        if value is None:
            return "" if one != two else "·"
        return f"{value / unit:.3g}" if value else _BROKEN

    names = _labels(nodes)
    rows = tuple((names[node], *(cell(node, other) for other in nodes)) for node in nodes)
    return Exhibit(
        title=f"Best bandwidth between pairs of nodes, {name}",
        columns=("", *(str(i) for i in range(len(nodes)))),
        rows=rows,
        notes=(f"{_BROKEN} hung or failed; empty: not measured.",),
    )


def _symbols(run: CollectiveFacts, values: dict[Pair, float], nodes: Sequence[str]) -> Exhibit:
    """One character a pair; of very many nodes only those with something odd keep their row."""
    scores = pair_scores(run.groups)
    limits = odd_limits(run.groups)

    def sign(one: str, two: str) -> str:
        pair = (min(one, two), max(one, two))
        if pair not in values:
            return "\\" if one == two else " "
        if not values[pair]:
            return _BROKEN
        score = scores.get(pair, 1.0)
        return _FINE if score >= limits["warn"] else _LOW if score >= limits["fail"] else _ODD

    lines = {node: "".join(sign(node, other) for other in nodes) for node in nodes}
    shown = (
        nodes if len(nodes) <= _MAX_COLUMNS else [node for node in nodes if set(lines[node]) & {_LOW, _ODD, _BROKEN}]
    )
    if len(nodes) > _MAX_COLUMNS:
        names = _labels(nodes)
        rows = tuple((names[node], _counts(lines[node])) for node in shown)
    else:
        width = min(_NAME_WIDTH, _LINE_WIDTH - len("00 ") - len("  ") - len(nodes))
        names = _labels(nodes, width)
        rows = tuple((names[node], lines[node].replace(" ", "_")) for node in nodes)
    legend = f"{_FINE} at least {limits['warn']:.0%} of the middle, {_LOW} at least {limits['fail']:.0%}, {_ODD} less, "
    return Exhibit(
        title=f"Pairs of {len(nodes)} nodes",
        columns=("", "with each other node, in the same order" if len(nodes) <= _MAX_COLUMNS else "pairs"),
        rows=rows or (("all", _FINE),),
        notes=(f"{legend}{_BROKEN} hung or failed, _ not measured.",),
    )


def _counts(line: str) -> str:
    words = {_FINE: "well", _LOW: "slow", _ODD: "very slow", _BROKEN: "broken"}
    return ", ".join(f"{line.count(sign)} {word}" for sign, word in words.items() if sign in line)


def _labels(nodes: Sequence[str], width: int = _NAME_WIDTH) -> dict[str, str]:
    """A number and a short name for each: without the domain that all share, then the end, since names begin alike."""
    tails = [node.partition(".")[2] for node in nodes]
    shared = f".{tails[0]}" if tails and len(set(tails)) == 1 and tails[0] and not tails[0][-1].isdigit() else ""
    found: dict[str, str] = {}
    for index, node in enumerate(nodes):
        name = node.removesuffix(shared)
        found[node] = f"{index} {name if len(name) <= width else f'~{name[1 - width :]}'}"
    return found
