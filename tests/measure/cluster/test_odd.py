"""The odd one out, on every kind of fault and on faults that nobody thought of."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck.measure.cluster.odd import Edge, explain, pairs

NODES = tuple(f"node{n}" for n in range(1, 7))


def every(nodes: tuple[str, ...] = NODES) -> set[Edge]:
    return {(a, b) for a in nodes for b in nodes if a != b}


def to(node: str, nodes: tuple[str, ...] = NODES) -> set[Edge]:
    return {(other, node) for other in nodes if other != node}


def out_of(node: str, nodes: tuple[str, ...] = NODES) -> set[Edge]:
    return {(node, other) for other in nodes if other != node}


def kinds(nodes: tuple[str, ...], failed: set[Edge]) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(odd.kind, odd.nodes, odd.others) for odd in explain(nodes, failed)]


def test_nothing_failed() -> None:
    assert explain(NODES, set()) == ()


@pytest.mark.parametrize("size", [3, 4, 8, 64])
def test_one_node_in_random_places(size: int) -> None:
    nodes = tuple(f"n{n}" for n in range(size))
    for node in random.Random(size).sample(nodes, min(size, 5)):
        assert kinds(nodes, to(node, nodes) | out_of(node, nodes)) == [("cut-off", (node,), ())]
        assert kinds(nodes, to(node, nodes)) == [("unreached", (node,), ())]
        assert kinds(nodes, out_of(node, nodes)) == [("reaches-none", (node,), ())]


def test_pairs_and_directions() -> None:
    assert kinds(NODES, pairs([("node2", "node5")])) == [("pair", ("node2",), ("node5",))]
    assert kinds(NODES, {("node5", "node2")}) == [("one-way", ("node5",), ("node2",))]
    assert kinds(("a", "b"), {("a", "b"), ("b", "a")}) == [("pair", ("a",), ("b",))]
    assert kinds(("a", "b"), {("a", "b")}) == [("one-way", ("a",), ("b",))]


def test_two_faults_at_once() -> None:
    failed = to("node1") | out_of("node1") | pairs([("node3", "node4")])
    assert kinds(NODES, failed) == [("cut-off", ("node1",), ()), ("pair", ("node3",), ("node4",))]
    assert kinds(NODES, to("node2") | to("node3")) == [("unreached", ("node2",), ()), ("unreached", ("node3",), ())]
    assert kinds(NODES, to("node2") | out_of("node5")) == [
        ("unreached", ("node2",), ()),
        ("reaches-none", ("node5",), ()),
    ]


def test_two_of_three_unreached_do_not_put_the_blame_on_the_third() -> None:
    nodes = ("a", "b", "c")
    assert kinds(nodes, to("a", nodes) | to("b", nodes)) == [("unreached", ("a",), ()), ("unreached", ("b",), ())]


def test_groups() -> None:
    west, east = NODES[:2], NODES[2:]
    across = pairs((a, b) for a in west for b in east)
    assert kinds(NODES, across) == [("split", west, east)]
    assert kinds(NODES, {(a, b) for a in west for b in east}) == [("groups", west, east)]
    assert kinds(NODES, every()) == [("all", NODES, ())]


def test_a_node_that_is_only_partly_reached() -> None:
    failed = {(other, "node4") for other in NODES[:3]}
    (odd,) = explain(NODES, failed)
    assert (odd.kind, odd.culprit) == ("partly", "node4")


def test_only_what_was_tried_counts() -> None:
    """A silent node has no listener: it was only tried from some, and tried none itself."""
    tried = every(NODES[:5]) | {("node1", "node6"), ("node2", "node6")}
    found = explain(NODES, {("node1", "node6"), ("node2", "node6"), ("node6", "node1")}, tried)
    assert [(odd.kind, odd.nodes) for odd in found] == [("cut-off", ("node6",))]
    assert found[0].edges == {("node1", "node6"), ("node2", "node6")}


SIZES = st.integers(2, 7)


@st.composite
def failures(draw: st.DrawFn) -> tuple[tuple[str, ...], set[Edge], set[Edge]]:
    nodes = (*NODES[: draw(SIZES) - 1], "z")
    tried = draw(st.sets(st.sampled_from(sorted(every(nodes)))))
    return nodes, draw(st.sets(st.sampled_from(sorted(every(nodes))))), tried


@given(failures())
@settings(max_examples=300, deadline=None)
def test_it_explains_all_that_failed_and_nothing_else(case: tuple[tuple[str, ...], set[Edge], set[Edge]]) -> None:
    nodes, failed, tried = case
    found = explain(nodes, failed, tried)
    assert set().union(*(odd.edges for odd in found)) == failed & tried
    assert all(odd.edges for odd in found)
    assert all(node in nodes for odd in found for node in odd.nodes + odd.others)
    assert len(found) <= len(failed & tried)
    for odd in found:
        if odd.culprit:
            assert all(odd.culprit in edge for edge in odd.edges)


@given(failures(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_names_do_not_matter(case: tuple[tuple[str, ...], set[Edge], set[Edge]], rng: random.Random) -> None:
    """The same fault under other names has the same explanation under those names."""
    nodes, failed, tried = case
    names = dict(zip(nodes, rng.sample([f"x{n}" for n in range(20)], len(nodes)), strict=True))
    renamed = [{(names[a], names[b]) for a, b in edges} for edges in (failed, tried)]
    plain = [(odd.kind, tuple(names[node] for node in odd.nodes)) for odd in explain(nodes, failed, tried)]
    assert [(odd.kind, odd.nodes) for odd in explain(tuple(names.values()), *renamed)] == plain
