"""What the checks that compare machines share: who answered, who differs from the rest, and how to say it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rlcheck.facts.base import Struct, need
from rlcheck.facts.cluster import ClusterFacts, MachineFacts, Member
from rlcheck.facts.document import Facts
from rlcheck.tables import Threshold, table
from rlcheck.text import GIB, MIB, listed

_MAX_NAMES = 6
_MAX_VALUES = 4


class _Environ(Struct, frozen=True):
    matter: tuple[str, ...]
    matter_exact: frozenset[str]
    own: frozenset[str]
    source: str


class ClusterTables(Struct, frozen=True):
    """All of data/cluster.json; keys are as there."""

    thresholds: dict[str, Threshold]
    environ: _Environ


def tables() -> ClusterTables:
    """Return the data."""
    return table("cluster", ClusterTables)


def threshold(name: str) -> float:
    """A number of data/cluster.json; its unit is the end of its name."""
    return tables().thresholds[name].value


def cluster(facts: Facts) -> ClusterFacts:
    """The section, which must be there."""
    return need(facts.cluster)


def alive(facts: Facts) -> list[Member]:
    """The members that should take part in a run."""
    return [member for member in cluster(facts).members if member.alive]


def machines(facts: Facts) -> dict[str, MachineFacts]:
    """The machines that answered, by the name of the member, in the order of the members."""
    return {m.name: m.machine.value for m in alive(facts) if m.machine.value is not None}


def by_name(facts: Facts) -> dict[str, Member]:
    """The living members by name."""
    return {member.name: member for member in alive(facts)}


def names(nodes: Sequence[str], most: int = _MAX_NAMES) -> str:
    """`node1, node2 and 3 more`, for a reader."""
    return listed(nodes, most)


def differing(values: Mapping[str, str]) -> str:
    """Who has which value, the minority first and named; "" when all agree (or fewer than two are known).

    For instance `2 of 64 nodes (node7, node9) have 2.10, all others 2.11`.
    """
    groups: dict[str, list[str]] = {}
    for node, value in values.items():
        groups.setdefault(value, []).append(node)
    if len(groups) < 2:
        return ""
    largest = max(groups, key=lambda value: len(groups[value]))
    if sum(len(nodes) == len(groups[largest]) for nodes in groups.values()) > 1:
        return "; ".join(f"{names(nodes)} {_have(nodes)} {value}" for value, nodes in _first(groups))
    rest = {value: nodes for value, nodes in groups.items() if value != largest}
    odd = "; ".join(
        f"{len(nodes)} of {len(values)} nodes ({names(nodes)}) {_have(nodes)} {value}" for value, nodes in _first(rest)
    )
    return f"{odd}, all others {largest}" if len(groups) <= _MAX_VALUES else f"{odd}, most {largest}"


def _first(groups: Mapping[str, list[str]]) -> list[tuple[str, list[str]]]:
    """The smallest groups; a table with dozens of values tells nothing."""
    return sorted(groups.items(), key=lambda item: len(item[1]))[:_MAX_VALUES]


def _have(nodes: Sequence[str]) -> str:
    return "has" if len(nodes) == 1 else "have"


def minority(values: Mapping[str, str]) -> list[str]:
    """The nodes whose value is not the most frequent one; empty when no value is more frequent than all others."""
    counts: dict[str, int] = {}
    for value in values.values():
        counts[value] = counts.get(value, 0) + 1
    top = max(counts.values(), default=0)
    if sum(count == top for count in counts.values()) != 1:
        return []
    return [node for node, value in values.items() if counts[value] != top]


def versions(facts: Facts, name: str) -> dict[str, str]:
    """The version of one thing on each machine that has it."""
    return {node: machine.versions[name] for node, machine in machines(facts).items() if name in machine.versions}


def version_lines(facts: Facts, wanted: Iterable[str]) -> list[tuple[str, str]]:
    """For each of `wanted` that differs: its name, and who has what.

    What some machines lack altogether counts as a difference, unless it is the head alone that lacks it.
    """
    found: list[tuple[str, str]] = []
    heads = {member.name for member in alive(facts) if member.is_head}
    for name in wanted:
        have = versions(facts, name)
        lacking = [node for node in machines(facts) if node not in have and node not in heads]
        values = have | dict.fromkeys(lacking, "none") if have else {}
        text = differing(values)
        if text:
            found.append((name, text))
    return found


def gib(num_bytes: float) -> str:
    """`1.5 GiB`, `64 MiB`."""
    if num_bytes < GIB:
        return f"{num_bytes / MIB:.0f} MiB"
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes < 100 * GIB else f"{num_bytes / GIB:.0f} GiB"
