"""Who is to blame: a rank, a node or a link between two nodes, from what happened in the measured groups. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_high, median_low

from rlcheck.facts.base import Struct
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Sample
from rlcheck.measure.cluster import odd
from rlcheck.measure.collectives.expect import odd_limits, table

LARGE_BYTES = 1 << 20
"""From this size on bandwidth decides; on a slow network it is large already."""
HOPELESS = 0.05
"""No noise makes a pair twenty times slower than the others."""
Pair = tuple[str, str]


class Suspect(Struct, frozen=True):
    """Somebody to look at. `what` is node, pair or rank; `names` are the nodes, `ranks` the ranks.

    `kind` is dead, silent, wrong, unreachable or slow. `ratio` is the part of its peers' speed that it reaches.
    """

    what: str
    names: tuple[str, ...]
    kind: str
    why: str
    ranks: tuple[int, ...] = ()
    ratio: float = 1.0

    @property
    def label(self) -> str:
        """As a reader knows it: `node3`, `node1 ↔ node3`, `rank 5 on node3`."""
        if self.what == "rank":
            return f"rank {self.ranks[0]}" + (f" on {self.names[0]}" if self.names else "")
        return " ↔ ".join(self.names)


def suspects(facts: CollectiveFacts) -> tuple[Suspect, ...]:
    """Everybody to blame, the plainest reason first; who is dead is not blamed for being silent or slow as well."""
    node_of = {rank.rank: rank.node for rank in facts.ranks}
    found: list[Suspect] = [
        Suspect(what="node", names=(node,), kind="dead" if _died(reason) else "unreachable", why=reason)
        for node, reason in facts.lost.items()
    ]
    found += _dead_and_silent(facts.groups, node_of)
    found += _wrong(facts.groups, node_of)
    found += _links(facts.groups, "unreachable", {name for suspect in found for name in suspect.names})
    found += _links(facts.groups, "slow", {name for suspect in found for name in suspect.names})
    found += _slow_inside(facts)
    return _once(found)


def suspect_nodes(groups: Sequence[GroupRun]) -> tuple[str, ...]:
    """The nodes that want another partner: each pair of theirs was bad, so it may be they or their partners."""
    outcomes = _outcomes(groups, "slow") | {
        pair: False for pair, ok in _outcomes(groups, "unreachable").items() if not ok
    }
    bad = {node for pair, ok in outcomes.items() if not ok for node in pair}
    good = {node for pair, ok in outcomes.items() if ok for node in pair}
    return tuple(sorted(bad - good))


def blame(outcomes: Mapping[Pair, bool]) -> tuple[tuple[str, ...], ...]:
    """The nodes and the pairs that explain which pairs are bad (False).

    A node is blamed when it is bad with two partners or more and the others are fine among themselves; what no such
    node explains, or cannot be distinguished further, is named as a pair.
    """
    names = sorted({node for pair in outcomes for node in pair})
    bad = odd.pairs(pair for pair, ok in outcomes.items() if not ok)
    found = odd.explain(names, bad, odd.pairs(outcomes))
    nodes = sorted({one.culprit for one in found if one.culprit})
    links = {(a, b) for one in found if not one.culprit for a, b in one.edges if a < b}
    return tuple([(node,) for node in nodes] + sorted(links))


def _died(reason: str) -> bool:
    return reason.startswith(("ended", "exit", "signal"))


def _dead_and_silent(groups: Sequence[GroupRun], node_of: Mapping[int, str]) -> list[Suspect]:
    dead: dict[int, str] = {}
    silent: dict[int, list[str]] = {}
    for group in groups:
        if group.stall is None:
            continue
        for rank, how in group.stall.died.items():
            if rank.isdecimal():
                dead.setdefault(int(rank), f"{how} in step {group.stall.step}")
        for rank in group.stall.silent:
            silent.setdefault(rank, []).append(group.stall.step)
    return [_rank(rank, "dead", how, node_of) for rank, how in sorted(dead.items())] + [
        _rank(rank, "silent", "never entered step " + ", ".join(dict.fromkeys(steps)), node_of)
        for rank, steps in sorted(silent.items())
        if rank not in dead
    ]


def _rank(rank: int, kind: str, why: str, node_of: Mapping[int, str]) -> Suspect:
    names = (node_of[rank],) if rank in node_of else ()
    return Suspect(what="rank", names=names, kind=kind, why=why, ranks=(rank,))


def _wrong(groups: Sequence[GroupRun], node_of: Mapping[int, str]) -> list[Suspect]:
    """The ranks whose contribution explains the wrong sums; without a hint, the nodes whose pairs are wrong."""
    found: list[Suspect] = []
    blamed: Counter[int] = Counter()
    for group in groups:
        sets = [set(wrong.suspects) for wrong in group.wrong if wrong.suspects]
        common = set[int].intersection(*sets) if sets else set[int]()
        blamed.update(common or (rank for ranks in sets for rank in ranks))
    most = max(blamed.values(), default=0)
    for rank, count in sorted(blamed.items()):
        if count == most:
            found.append(_rank(rank, "wrong", f"its part explains the wrong results of {count} groups", node_of))
    if not found:
        outcomes = {
            _pair(group): not group.wrong for group in groups if group.phase == "pair" and len(group.nodes) == 2
        }
        found = [_place(names, "wrong", "wrong results with it, right ones without") for names in blame(outcomes)]
    return found


def _links(groups: Sequence[GroupRun], kind: str, known: set[str]) -> list[Suspect]:
    outcomes = {pair: ok for pair, ok in _outcomes(groups, kind).items() if not known & set(pair)}
    scores = pair_scores(groups)
    found: list[Suspect] = []
    for names in blame(outcomes):
        mine = {pair: scores.get(pair, 1.0) for pair, ok in outcomes.items() if not ok and set(names) <= set(pair)}
        if kind == "slow":
            worst = min(mine.values(), default=1.0)
            others = ", ".join(sorted({node for pair in mine for node in pair} - set(names)))
            why = f"{worst:.0%} of the other pairs' bandwidth" + (f" with {others}" if len(names) == 1 else "")
            found.append(_place(names, kind, why, worst))
        else:
            found.append(_place(names, kind, _first_error(groups, names)))
    return found


def _place(names: tuple[str, ...], kind: str, why: str, ratio: float = 1.0) -> Suspect:
    return Suspect(what="node" if len(names) == 1 else "pair", names=names, kind=kind, why=why, ratio=ratio)


def _first_error(groups: Sequence[GroupRun], names: tuple[str, ...]) -> str:
    for group in groups:
        if group.phase == "pair" and set(names) <= set(group.nodes) and _failed(group):
            return group.error or (f"step {group.stall.step} did not end" if group.stall else "")
    return ""


def _pair(group: GroupRun) -> Pair:
    first, second = sorted(group.nodes)
    return first, second


def _failed(group: GroupRun) -> bool:
    """Whether the group broke although no single rank of it is to blame."""
    if group.stall is not None:
        return not group.stall.silent and not group.stall.died
    return bool(group.error) and not group.samples


def _outcomes(groups: Sequence[GroupRun], kind: str) -> dict[Pair, bool]:
    """Each measured pair of nodes, and whether it is fine in the sense of `kind`. The last measurement counts."""
    pairs = [group for group in groups if group.phase == "pair" and len(group.nodes) == 2]
    if kind == "unreachable":
        return {_pair(group): not _failed(group) for group in pairs if group.samples or _failed(group)}
    limit = odd_limits(groups)["warn"]
    return {pair: score >= limit for pair, score in pair_scores(groups).items()}


def pair_scores(groups: Sequence[GroupRun]) -> dict[Pair, float]:
    """Each pair's bandwidth as a part of its peers', over all collectives and large sizes. A pair alone scores 1.

    Of several measurements of a pair the best counts: other work on the machines can only make it slower.
    """
    best: dict[Pair, GroupRun] = {}
    for group in groups:
        if group.phase == "pair" and len(group.nodes) == 2 and group.samples:
            known = best.setdefault(_pair(group), group)
            best[_pair(group)] = group if _speed_up(known, group) > 1 else known
    return _scores(best)


def _speed_up(old: GroupRun, new: GroupRun) -> float:
    before = {(sample.collective, sample.num_bytes): sample.busbw for sample in _large(old.samples)}
    after = [(sample.busbw, before.get((sample.collective, sample.num_bytes))) for sample in _large(new.samples)]
    return _middle(now / then for now, then in after if then)


def worth_a_second_look(groups: Sequence[GroupRun]) -> tuple[Pair, ...]:
    """Slow pairs that noise may have made so: they came to the end, were measured once, and are not hopelessly slow.

    A node that was slow a second time with two partners needs no third.
    """
    counts = Counter(_pair(group) for group in groups if group.phase == "pair" and len(group.nodes) == 2)
    broken = {_pair(g) for g in groups if g.phase == "pair" and len(g.nodes) == 2 and (g.stall or g.error)}
    limit = odd_limits(groups)["warn"]
    slow = {pair: score for pair, score in pair_scores(groups).items() if score < limit and pair not in broken}
    confirmed = Counter(node for pair in slow if counts[pair] > 1 for node in pair)
    return tuple(
        pair
        for pair, score in sorted(slow.items())
        if counts[pair] == 1 and score >= HOPELESS and max(confirmed[node] for node in pair) < 2
    )


def node_scores(facts: CollectiveFacts) -> dict[str, float]:
    """Each node's bandwidth inside of it as a part of that of the nodes with the same devices."""
    device_of = {rank.rank: rank.device for rank in facts.ranks}
    kinds: dict[tuple[str, ...], dict[Pair, GroupRun]] = {}
    for group in facts.groups:
        if group.phase == "node" and group.samples:
            kind = tuple(sorted(device_of.get(rank, "") for rank in group.ranks))
            kinds.setdefault(kind, {})[group.nodes[0], group.nodes[0]] = group
    return {pair[0]: score for runs in kinds.values() for pair, score in _scores(runs).items()}


class WeakDevice(Struct, frozen=True):
    """A rank whose device computes more slowly than the others of its kind: `ratio` of their speed, in `kind`."""

    rank: int
    node: str
    index: int
    device: str
    kind: str
    ratio: float

    @property
    def label(self) -> str:
        """As a reader knows it: `GPU 3 on node2`, `rank 3 on node2 (cpu)`."""
        return f"rank {self.rank} on {self.node} (cpu)" if self.device == "cpu" else f"GPU {self.index} on {self.node}"


def work_scores(facts: CollectiveFacts) -> tuple[WeakDevice, ...]:
    """Each rank's speed as a part of the middle of those with the same device, in what it is slower at; slowest first.

    Of both turns the quicker counts: what one neighbour alone slows is not the device.
    """
    ranks = {rank.rank: rank for rank in facts.ranks}
    times: dict[tuple[str, str], dict[int, float]] = {}
    for group in facts.groups:
        for work in group.work:
            if work.rank in ranks and (seconds := min((one for one in work.seconds if one > 0), default=0.0)):
                known = times.setdefault((ranks[work.rank].device, work.kind), {})
                known[work.rank] = min(seconds, known.get(work.rank, seconds))
    found: dict[int, WeakDevice] = {}
    for (device, kind), by_rank in times.items():
        if len(by_rank) < 2:
            continue
        middle = median_low(by_rank.values())
        for rank, seconds in by_rank.items():
            one = WeakDevice(rank, ranks[rank].node, ranks[rank].local_rank, device, kind, middle / seconds)
            found[rank] = min(found.get(rank, one), one, key=lambda known: known.ratio)
    return tuple(sorted(found.values(), key=lambda one: one.ratio))


def _scores(runs: Mapping[Pair, GroupRun]) -> dict[Pair, float]:
    """For each run, the middle of its ratios to the reference of the same collective and size.

    The reference is the middle of the nodes, each of which counts with the middle of its runs: a middle of the runs
    would be that of an odd node where there are few, since it spoils the runs of all its partners.
    """
    values: dict[tuple[str, int], dict[str, list[float]]] = {}
    for pair, run in runs.items():
        for sample in _large(run.samples):
            by_node = values.setdefault((sample.collective, sample.num_bytes), {})
            for node in set(pair):
                by_node.setdefault(node, []).append(sample.busbw)
    middle = {key: median_high(median_high(found) for found in nodes.values()) for key, nodes in values.items()}
    return {
        pair: _middle(s.busbw / middle[s.collective, s.num_bytes] for s in _large(run.samples))
        for pair, run in runs.items()
    }


def _large(samples: Iterable[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.num_bytes >= LARGE_BYTES and sample.busbw > 0]


def _middle(ratios: Iterable[float]) -> float:
    found = list(ratios)
    return median(found) if found else 1.0


def _slow_inside(facts: CollectiveFacts) -> list[Suspect]:
    limit = (table().odd.other if facts.backend == "gloo" else table().odd.rdma)["warn"]
    return [
        Suspect(
            what="node",
            names=(node,),
            kind="slow",
            ratio=score,
            why=f"{score:.0%} of the other nodes' bandwidth inside",
        )
        for node, score in sorted(node_scores(facts).items())
        if score < limit
    ]


def _once(found: Iterable[Suspect]) -> tuple[Suspect, ...]:
    """Each name under its first reason. A rank of a node that is already blamed is left out."""
    seen: dict[tuple[str, ...], Suspect] = {}
    for suspect in found:
        key = (*suspect.names, *map(str, suspect.ranks))
        if suspect.what == "rank" and seen.get(suspect.names, suspect).what == "node":
            continue
        seen.setdefault(key, suspect)
    return tuple(seen.values())
