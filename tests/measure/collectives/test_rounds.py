"""Rounds of pairs, and that with them the odd node is found wherever it stands (simulated; real ones: tests/bench)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rlcheck.facts.base import known
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Rank, Sample
from rlcheck.measure.collectives import attribution, rounds

SIZES = range(2, 18)


def names(num: int) -> list[str]:
    return [f"n{index}" for index in range(num)]


@pytest.mark.parametrize("num", SIZES)
def test_everybody_meets_everybody_once(num: int) -> None:
    turns = rounds.tournament(names(num))
    assert len(turns) == (num - 1 if num % 2 == 0 else num)
    met = Counter(frozenset(pair) for pairs in turns for pair in pairs)
    assert len(met) == num * (num - 1) // 2
    assert set(met.values()) == {1}
    for pairs in turns:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy)) == num - num % 2


@pytest.mark.parametrize("num", SIZES)
def test_quick_rounds_give_everybody_two_partners(num: int) -> None:
    turns = rounds.quick(names(num))
    assert len(turns) <= (2 if num % 2 == 0 else 4)
    partners = Counter(node for pairs in turns for pair in pairs for node in pair)
    assert all(partners[node] >= min(2, num - 1) for node in names(num))
    for pairs in turns:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy))
    assert len({frozenset(pair) for pairs in turns for pair in pairs}) == sum(map(len, turns))


def test_suspects_meet_good_nodes_that_they_have_not_met() -> None:
    met = [("a", "c"), ("b", "d")]
    assert rounds.again(["a", "b"], ["c", "d"], met) == (("a", "d"), ("b", "c"))
    assert rounds.again(["a"], ["c"], [("a", "c")]) == (("a", "c"),)
    assert rounds.again(["a", "b"], ["c"], []) == (("a", "c"),)


def group(pair: rounds.Pair, number: int, fault: str, odd: str, noise: random.Random) -> GroupRun:
    """What a pair measures when `odd` has `fault`."""
    nodes = sorted(pair)
    is_odd = odd in pair
    if is_odd and fault == "unreachable":
        return GroupRun(phase="pair", nodes=tuple(nodes), ranks=(), round=number, error="init: timed out")
    busbw = 1e9 * (0.2 if is_odd else 1.0) * noise.uniform(0.8, 1.2)
    samples = tuple(
        Sample(collective="all_reduce", num_bytes=size, seconds=1.0, algbw=busbw, busbw=busbw)
        for size in (1 << 20, 4 << 20)
    )
    return GroupRun(phase="pair", nodes=tuple(nodes), ranks=(), round=number, init_s=known(0.1), samples=samples)


@pytest.mark.parametrize("fault", ["slow", "unreachable"])
@pytest.mark.parametrize("seed", range(20))
def test_the_odd_node_is_found_wherever_it_stands(fault: str, seed: int) -> None:
    noise = random.Random(f"{fault} {seed}")
    nodes = names(noise.randint(3, 24))
    odd = noise.choice(nodes)
    turns = rounds.quick(nodes)
    groups = [group(pair, number, fault, odd, noise) for number, pairs in enumerate(turns) for pair in pairs]
    suspects = attribution.suspect_nodes(groups)
    assert odd in suspects
    good = [node for node in nodes if node not in suspects]
    met = [(run.nodes[0], run.nodes[1]) for run in groups]
    groups += [group(pair, len(turns), fault, odd, noise) for pair in rounds.again(suspects, good, met)]
    ranks = tuple(Rank(rank=index, node=node, local_rank=0) for index, node in enumerate(nodes))
    found = attribution.suspects(CollectiveFacts(launcher="ssh", backend="gloo", ranks=ranks, groups=tuple(groups)))
    assert [(suspect.what, suspect.names, suspect.kind) for suspect in found] == [("node", (odd,), fault)]


def test_a_round_has_nobody_twice() -> None:
    assert rounds.disjoint([("a", "b"), ("a", "c"), ("c", "d")]) == (("a", "b"), ("c", "d"))
