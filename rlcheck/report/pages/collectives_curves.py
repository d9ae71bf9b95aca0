"""What a picture of collectives shows: curves of bandwidth over size, and the pairs of nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlcheck.facts.collectives import GroupRun, devices_of
from rlcheck.facts.document import Facts
from rlcheck.measure.collectives.expect import expectation
from rlcheck.report.topics.collectives import collectives_in, middle_curve, pair_bandwidths

_GB = 1e9


@dataclass(frozen=True)
class Curve:
    """One collective: `found` and `expected` are (bytes, GB/s), rising in size; `derived` marks a calculated floor."""

    collective: str
    found: tuple[tuple[int, float], ...]
    expected: tuple[tuple[int, float], ...]
    derived: bool = False


@dataclass(frozen=True)
class Panel:
    """The curves of one kind of group."""

    title: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Heat:
    """Pairs of nodes: `values[i][j]` in GB/s, NaN where not measured, 0 where it hung or failed."""

    nodes: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


def panels_of(facts: Facts) -> tuple[Panel, ...]:
    """The curves over all nodes, and those inside of nodes (the middle of several)."""
    run = facts.collectives.value
    if run is None:
        return ()
    inner = [group for group in run.groups if len(group.nodes) == 1 and group.samples]
    outer = [group for group in run.groups if len(group.nodes) > 1 and group.phase != "pair" and group.samples]
    found = [_panel(facts, f"Over {len(group.nodes)} nodes, {devices_of(run, group)}", [group]) for group in outer]
    if inner:
        where = f"Inside {inner[0].nodes[0]}" if len(inner) == 1 else f"Inside a node (middle of {len(inner)})"
        found.append(_panel(facts, f"{where}, {devices_of(run, inner[0])}", inner))
    return tuple(found)


def _panel(facts: Facts, title: str, groups: Sequence[GroupRun]) -> Panel:
    return Panel(title, tuple(_curve(facts, groups, name) for name in collectives_in(groups)))


def _curve(facts: Facts, groups: Sequence[GroupRun], collective: str) -> Curve:
    found = [(size, busbw / _GB) for size, (busbw, _) in middle_curve(groups, collective).items()]
    least = [(size, expectation(facts, groups[0], collective, size)) for size, _ in found]
    known = [(size, one) for size, one in least if one is not None]
    return Curve(
        collective=collective,
        found=tuple(found),
        expected=tuple((size, one.busbw / _GB) for size, one in known),
        derived=any(one.derived for _, one in known),
    )


def heat_of(facts: Facts) -> Heat | None:
    """The matrix of the pairs, None for fewer than three nodes."""
    values = pair_bandwidths(facts.collectives.value) if facts.collectives.value is not None else {}
    nodes = sorted({node for pair in values for node in pair})
    if len(nodes) < 3:
        return None
    rows = [tuple(values.get((min(a, b), max(a, b)), math.nan * _GB) / _GB for b in nodes) for a in nodes]
    return Heat(tuple(nodes), tuple(rows))
