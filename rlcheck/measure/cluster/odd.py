"""Who is the odd one out: from connections that failed to the machine, the direction or the pair that explains them.

Pure, and blind to what a connection is: TCP between machines, a slow pair in a collective, a pair that hung.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from rlcheck.facts.cluster import Member
from rlcheck.facts.reach import Contact

Edge = tuple[str, str]
Kind = Literal["all", "cut-off", "split", "unreached", "reaches-none", "groups", "partly", "pair", "one-way"]
_MIN_PARTLY = 3


class Odd(msgspec.Struct, frozen=True):
    """One explanation.

    `kind` says how `nodes` and `others` belong together:
    all: nothing works between any two of `nodes`; nobody is to blame more than the rest.
    cut-off: nothing works between the one in `nodes` and anyone else, in either direction.
    split: `nodes` and `others` work among themselves, and nothing works between the two groups.
    unreached, reaches-none: nothing that goes to (comes from) the one in `nodes` works; the other direction does.
    groups: nothing works from any of `nodes` to any of `others`; back it does.
    partly: every failure that is left has to do with the one in `nodes`, but some of its connections work.
    pair: neither direction works between the one in `nodes` and the one in `others`.
    one-way: it does not work from the one in `nodes` to the one in `others`.
    `edges` are the failures that it explains.
    """

    kind: Kind
    nodes: tuple[str, ...]
    others: tuple[str, ...] = ()
    edges: frozenset[Edge] = frozenset()

    @property
    def culprit(self) -> str:
        """The one machine that explains it, "" when no single one does."""
        return self.nodes[0] if self.kind in ("cut-off", "unreached", "reaches-none", "partly") else ""


def explain(nodes: Sequence[str], failed: Collection[Edge], tried: Collection[Edge] | None = None) -> tuple[Odd, ...]:
    """The fewest explanations of `failed` that this module knows, in the order of `nodes`.

    Args:
        nodes: names, each once, in the order in which they are shown.
        failed: directed edges (from, to) that did not work. What is not in `tried` is left out.
        tried: directed edges that were tried; every ordered pair of `nodes` when not given.

    The edges of the answers together are exactly those of `failed` that were tried.
    """
    order = {node: place for place, node in enumerate(nodes)}
    all_tried = {(a, b) for a in nodes for b in nodes if a != b} if tried is None else set(tried)
    all_tried = {(a, b) for a, b in all_tried if a in order and b in order and a != b}
    bad = set(failed) & all_tried
    if not bad:
        return ()
    parts = _components(nodes, all_tried, bad)
    found = list(_between(parts, bad, order))
    left = bad - {edge for odd in found for edge in odd.edges}
    for part in parts:
        inside = {edge for edge in left if edge[0] in part and edge[1] in part}
        known = {edge for edge in all_tried if edge[0] in part and edge[1] in part}
        found += _within(inside, known, order)
    return tuple(sorted(found, key=lambda odd: [order[node] for node in odd.nodes + odd.others]))


def pairs(names: Iterable[tuple[str, str]]) -> set[Edge]:
    """Undirected pairs (of collectives, say) as the edges of both directions."""
    return {edge for a, b in names for edge in ((a, b), (b, a))}


def _components(nodes: Sequence[str], tried: set[Edge], bad: set[Edge]) -> list[frozenset[str]]:
    """Groups that hang together by what works in at least one direction; who was in no trial is in none."""
    neighbours: dict[str, set[str]] = {node: set() for edge in tried for node in edge}
    for a, b in tried - bad:
        neighbours[a].add(b)
        neighbours[b].add(a)
    parts: list[frozenset[str]] = []
    seen: set[str] = set()
    for node in nodes:
        if node in seen or node not in neighbours:
            continue
        reached, todo = {node}, [node]
        while todo:
            for near in neighbours[todo.pop()] - reached:
                reached.add(near)
                todo.append(near)
        seen |= reached
        parts.append(frozenset(reached))
    return parts


def _between(parts: list[frozenset[str]], bad: set[Edge], order: dict[str, int]) -> Iterable[Odd]:
    """What explains the failures between groups: whatever was tried there failed."""
    left = {edge for edge in bad if not any(edge[0] in part and edge[1] in part for part in parts)}
    largest = max(parts, key=len)
    if len(largest) == 1 and len(parts) > 2 and not _centre(left):
        names = _sorted((node for part in parts for node in part), order)
        yield Odd("all", names, edges=frozenset(left))
        return
    peers = {node: {end for edge in left if node in edge for end in edge} - {node} for part in parts for node in part}
    for part in sorted(parts, key=lambda one: (len(one), -max(len(peers[node]) for node in one))):
        mine = frozenset(edge for edge in left if (edge[0] in part) != (edge[1] in part))
        if (part is largest and len(part) > 1) or not mine:
            continue
        if len(part) > 1:
            # The larger group stands second; of two equal ones nobody can say which is the odd one.
            yield Odd("split", _sorted(part, order), _sorted(largest, order), edges=mine)
        elif all(len(peers[node]) > 1 for node in part):
            yield Odd("cut-off", tuple(part), edges=mine)
        else:
            continue  # tried with one other alone: nobody can say which of the two it is
        left -= mine
    yield from _pairs(left, order)


def _centre(edges: set[Edge]) -> bool:
    """Whether one machine has to do with every edge."""
    return any(all(node in edge for edge in edges) for node in next(iter(edges), ()))


def _within(bad: set[Edge], tried: set[Edge], order: dict[str, int]) -> list[Odd]:
    """What explains the failures in a group that hangs together."""
    if not bad:
        return []
    sources, targets = {a for a, _ in bad}, {b for _, b in bad}
    whole = bad == {(a, b) for a, b in tried if a in sources and b in targets}
    if whole and min(len(sources), len(targets)) > 1 and not sources & targets:
        return [Odd("groups", _sorted(sources, order), _sorted(targets, order), edges=frozenset(bad))]
    found = _one_sided(bad, tried, order)
    left = bad - {edge for odd in found for edge in odd.edges}
    while left:
        touching = Counter(node for edge in left for node in edge)
        node = max(touching, key=lambda name: (touching[name], -order[name]))
        mine = frozenset(edge for edge in left if node in edge)
        if len({other for edge in mine for other in edge}) - 1 < _MIN_PARTLY:
            break
        found.append(Odd("partly", (node,), edges=mine))
        left -= mine
    return [*found, *_pairs(left, order)]


def _one_sided(bad: set[Edge], tried: set[Edge], order: dict[str, int]) -> list[Odd]:
    """Machines to which, or from which, nothing works; those that the others explain are left out again."""
    candidates: list[Odd] = []
    sides: tuple[tuple[Kind, int], ...] = (("unreached", 1), ("reaches-none", 0))
    for node in order:
        for kind, end in sides:
            mine = frozenset(edge for edge in tried if edge[end] == node)
            if len(mine) > 1 and mine <= bad:
                candidates.append(Odd(kind, (node,), edges=mine))
    chosen: list[Odd] = []
    left = set(bad)
    while best := max(candidates, key=lambda odd: len(odd.edges & left), default=None):
        new = len(best.edges & left)
        # One edge that is left over needs no machine to explain it, unless others are one-sided in the same way.
        if not new or (new == 1 and not any(odd.kind == best.kind for odd in chosen)):
            break
        chosen.append(best)
        candidates.remove(best)
        left -= best.edges
    return _needed(chosen)


def _needed(chosen: list[Odd]) -> list[Odd]:
    """Without those whose edges the others cover."""
    for odd in sorted(chosen, key=lambda one: len(one.edges)):
        rest = [other for other in chosen if other is not odd]
        if odd.edges <= {edge for other in rest for edge in other.edges}:
            chosen = rest
    return chosen


def _pairs(bad: set[Edge], order: dict[str, int]) -> list[Odd]:
    found: list[Odd] = []
    for a, b in sorted(bad, key=lambda edge: (order[edge[0]], order[edge[1]])):
        if (b, a) not in bad:
            found.append(Odd("one-way", (a,), (b,), edges=frozenset({(a, b)})))
        elif order[a] < order[b]:
            found.append(Odd("pair", (a,), (b,), edges=frozenset({(a, b), (b, a)})))
    return found


def _sorted(names: Iterable[str], order: dict[str, int]) -> tuple[str, ...]:
    return tuple(sorted(names, key=order.__getitem__))


def contacts_by_edge(members: Iterable[Member]) -> dict[Edge, list[Contact]]:
    """The connections from each member to each other one."""
    found: dict[Edge, list[Contact]] = {}
    for member in members:
        for peer, contact in zip(member.peers, member.contacts, strict=False):
            if peer != member.name:
                found.setdefault((member.name, peer), []).append(contact)
    return found


def round_trips(members: Iterable[Member]) -> dict[Edge, float]:
    """The fastest connection of each direction, in seconds."""
    found = contacts_by_edge(members)
    times = {edge: [c.rtt_s for c in contacts if c.outcome == "open" and c.rtt_s >= 0]
             for edge, contacts in found.items()}  # fmt: skip
    return {edge: min(values) for edge, values in times.items() if values}
