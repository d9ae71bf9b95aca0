"""The odd node or link is named, wherever it is, in simulated clusters of every size."""

from __future__ import annotations

import random

import pytest

from rlcheck.facts.base import known
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Rank, Sample, Stall, Transport, Wrong
from rlcheck.measure.collectives import attribution
from rlcheck.measure.collectives.attribution import Suspect, suspect_nodes, suspects

MIB = 1 << 20
RDMA = known(Transport(network="IB"))
SOCKETS = known(Transport(network="Socket"))


def pair_run(one: str, two: str, busbw: float, transport=RDMA, rng: random.Random | None = None) -> GroupRun:
    """A healthy measurement at `busbw`, with some noise if asked for."""
    samples = tuple(
        Sample(
            collective=name,
            num_bytes=size,
            seconds=1e-3,
            algbw=busbw,
            busbw=busbw * part * (1 if rng is None else rng.uniform(0.99, 1.01)),
        )
        for name, part in (("all_reduce", 1.0), ("all_gather", 0.9))
        for size in (8 * MIB, 64 * MIB, 256 * MIB)
    )
    return GroupRun(phase="pair", nodes=(one, two), ranks=(), round=0, samples=samples, transport=transport)


def rounds_of(nodes: list[str], num_rounds: int) -> list[tuple[str, str]]:
    """Round-robin pairings: every node is in at most one pair of a round."""
    ring: list[str | None] = list(nodes) if len(nodes) % 2 == 0 else [*nodes, None]
    found = []
    for _ in range(num_rounds):
        half = len(ring) // 2
        found += [(a, b) for a, b in zip(ring[:half], reversed(ring[half:]), strict=True) if a and b]
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


class Cluster:
    """A made-up cluster: slow nodes and slow links."""

    def __init__(self, size: int, seed: int, slow_nodes: int = 0, slow_links: int = 0, factor: float = 0.7) -> None:
        self.rng = random.Random(seed)
        self.nodes = [f"n{i:02}" for i in range(size)]
        self.slow = set(self.rng.sample(self.nodes, slow_nodes))
        self.factor = factor
        self.links: set[frozenset[str]] = set()
        while len(self.links) < slow_links:
            self.links.add(frozenset(self.rng.sample(self.nodes, 2)))

    def run(self, one: str, two: str, transport=RDMA) -> GroupRun:
        bad = bool({one, two} & self.slow) or frozenset((one, two)) in self.links
        return pair_run(one, two, 40e9 * (self.factor if bad else 1.0), transport, self.rng)

    def quick(self, num_rounds: int = 2) -> list[GroupRun]:
        """Rounds, then each suspect with somebody who was fine."""
        groups = [self.run(*pair) for pair in rounds_of(self.nodes, num_rounds)]
        wanted = suspect_nodes(groups)
        fine = [node for node in self.nodes if node not in wanted]
        met = {frozenset(group.nodes) for group in groups}
        for node in wanted:
            partner = next((other for other in fine if frozenset((node, other)) not in met), None)
            if partner:
                groups.append(self.run(node, partner))
        return groups

    def all_pairs(self) -> list[GroupRun]:
        return [self.run(a, b) for i, a in enumerate(self.nodes) for b in self.nodes[i + 1 :]]


def judged(groups: list[GroupRun], **more) -> tuple[Suspect, ...]:
    return suspects(CollectiveFacts(launcher="ray", backend="nccl", groups=tuple(groups), **more))


@pytest.mark.parametrize("size", [3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 64])
def test_a_slow_node_is_named_by_all_pairs(size: int) -> None:
    for seed in range(20 if size < 20 else 3):
        cluster = Cluster(size, seed, slow_nodes=1)
        assert [s.names for s in judged(cluster.all_pairs())] == [tuple(cluster.slow)]


@pytest.mark.parametrize("size", [4, 5, 6, 7, 8, 9, 16, 17, 33, 64])
def test_a_slow_node_is_named_by_quick_rounds(size: int) -> None:
    for seed in range(20):
        cluster = Cluster(size, seed, slow_nodes=1)
        found = judged(cluster.quick())
        assert [s.names for s in found] == [tuple(cluster.slow)], (size, seed)
        assert found[0].kind == "slow"
        assert 0.6 < found[0].ratio < 0.8


def test_three_nodes_need_three_rounds() -> None:
    for seed in range(20):
        cluster = Cluster(3, seed, slow_nodes=1)
        assert [s.names for s in judged(cluster.quick(3))] == [tuple(cluster.slow)]


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_two_slow_nodes_are_both_named(size: int) -> None:
    for seed in range(20):
        cluster = Cluster(size, seed, slow_nodes=2)
        found = {name for s in judged(cluster.quick(3)) for name in s.names}
        assert found == cluster.slow, (size, seed)


@pytest.mark.parametrize("size", [5, 8, 13, 24])
def test_a_slow_link_is_named_as_one(size: int) -> None:
    for seed in range(10):
        cluster = Cluster(size, seed, slow_links=1)
        found = judged(cluster.all_pairs())
        assert [(s.what, frozenset(s.names)) for s in found] == [("pair", next(iter(cluster.links)))]


@pytest.mark.parametrize("size", [2, 3, 4, 8, 64])
def test_nobody_is_blamed_in_a_healthy_cluster(size: int) -> None:
    for seed in range(5):
        cluster = Cluster(size, seed)
        groups = cluster.quick()
        assert judged(groups) == ()
        assert suspect_nodes(groups) == ()


def test_a_busy_network_of_sockets_is_not_blamed_for_noise() -> None:
    rng = random.Random(1)
    nodes = [f"n{i}" for i in range(6)]
    groups = [pair_run(a, b, 1e9 * rng.uniform(0.6, 1.3), SOCKETS) for a, b in rounds_of(nodes, 5)]
    assert judged(groups) == ()
    pace = {frozenset(pair): rng.uniform(0.7, 1.3) * (0.2 if "n3" in pair else 1) for pair in rounds_of(nodes, 5)}
    groups = [pair_run(a, b, 1e9 * pace[frozenset((a, b))], SOCKETS) for a, b in rounds_of(nodes, 5)]
    assert [s.names for s in judged(groups)] == [("n3",)]


def stalled(nodes: tuple[str, ...], ranks: tuple[int, ...], **stall) -> GroupRun:
    phase = "pair" if len(nodes) == 2 else "all"
    return GroupRun(phase=phase, nodes=nodes, ranks=ranks, stall=Stall(step="all_reduce 1 MiB", deadline_s=20, **stall))


RANKS = tuple(Rank(rank=i, node=f"n{i // 2}", local_rank=i % 2) for i in range(6))


def test_who_never_came_is_silent_and_who_ended_is_dead() -> None:
    groups = [
        stalled(("n0", "n1", "n2"), tuple(range(6)), arrived=(0, 1, 2, 4), silent=(3, 5), died={"5": "signal 9"}),
        stalled(("n1", "n2"), (2, 3, 4, 5), arrived=(2, 4, 5), silent=(3,)),
    ]
    found = judged(groups, ranks=RANKS)
    assert [(s.kind, s.ranks, s.names) for s in found] == [("dead", (5,), ("n2",)), ("silent", (3,), ("n1",))]
    assert found[1].label == "rank 3 on n1"
    assert "signal 9" in found[0].why


def test_a_lost_machine_is_told_once() -> None:
    groups = [GroupRun(phase="pair", nodes=("n0", "n2"), ranks=(0, 4), error="connection reset")]
    found = judged(groups, ranks=RANKS, lost={"n2": "did not answer within 5 s"})
    assert [(s.what, s.kind, s.names) for s in found] == [("node", "unreachable", ("n2",))]


def test_links_that_do_not_work_are_told_from_nodes_that_do_not() -> None:
    good = [pair_run("n0", "n1", 1e9), pair_run("n0", "n2", 1e9), pair_run("n1", "n3", 1e9)]
    broken = GroupRun(phase="pair", nodes=("n2", "n3"), ranks=(), error="connection refused")
    found = judged([*good, broken])
    assert [(s.what, s.names, s.kind) for s in found] == [("pair", ("n2", "n3"), "unreachable")]
    assert "connection refused" in found[0].why


def test_a_broken_node_is_named_from_its_pairs() -> None:
    names = [f"n{i}" for i in range(5)]
    groups = [
        GroupRun(phase="pair", nodes=(a, b), ranks=(), error="timed out") if "n4" in (a, b) else pair_run(a, b, 1e9)
        for a, b in rounds_of(names, 5)
    ]
    found = judged(groups)
    assert [(s.what, s.names, s.kind) for s in found] == [("node", ("n4",), "unreachable")]


def test_wrong_sums_are_blamed_on_the_rank_that_explains_them() -> None:
    wrong = [
        Wrong(collective="all_reduce", dtype="float32", rank=r, index=0, found="9", expected="15", suspects=(4, s))
        for r, s in ((0, 1), (1, 2), (3, 4))
    ]
    group = GroupRun(phase="all", nodes=("n0", "n1", "n2"), ranks=tuple(range(6)), wrong=tuple(wrong))
    found = judged([group], ranks=RANKS)
    assert [(s.kind, s.label) for s in found] == [("wrong", "rank 4 on n2")]


def test_wrong_sums_without_a_hint_are_traced_through_the_pairs() -> None:
    bad = Wrong(collective="all_reduce", dtype="float32", rank=0, index=0, found="9", expected="15")
    groups = [
        GroupRun(phase="pair", nodes=(a, b), ranks=(), wrong=(bad,) if "n1" in (a, b) else ())
        for a, b in rounds_of(["n0", "n1", "n2", "n3"], 3)
    ]
    assert [(s.kind, s.names) for s in judged(groups)] == [("wrong", ("n1",))]


def test_a_node_that_is_slow_inside_is_named() -> None:
    groups = [
        GroupRun(phase="node", nodes=(f"n{i}",), ranks=(2 * i, 2 * i + 1), samples=pair_run("a", "b", bw).samples)
        for i, bw in enumerate((350e9, 240e9, 352e9))
    ]
    found = judged(groups, ranks=RANKS)
    assert [(s.what, s.names, s.kind) for s in found] == [("node", ("n1",), "slow")]
    assert "inside" in found[0].why


def test_slow_pairs_are_looked_at_again_and_the_best_counts() -> None:
    """Noise makes a pair slow once; one that is hopeless or was seen twice needs no more time."""
    nodes = ("a", "b", "c", "d")
    groups = [pair_run(one, two, 1e9) for one in nodes for two in nodes if one < two and (one, two) != ("a", "b")]
    slow = pair_run("a", "b", 0.2e9)
    assert attribution.worth_a_second_look([*groups, slow]) == (("a", "b"),)
    assert attribution.worth_a_second_look([*groups, slow, slow]) == ()
    assert attribution.worth_a_second_look([*groups, pair_run("a", "b", 0.01e9)]) == ()
    for again in ([slow, pair_run("a", "b", 1e9)], [pair_run("a", "b", 1e9), slow]):
        assert attribution.pair_scores([*groups, *again])["a", "b"] == 1
