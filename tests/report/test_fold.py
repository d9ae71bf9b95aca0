"""A report of many nodes is one block: what is the same is said once, what differs stays apart."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from rlcheck.facts.document import decode, encode
from rlcheck.finding import FamilyLine, Finding
from rlcheck.report.fold import fold, fold_findings, span, where
from tests.conftest import ROOT, rlcheck
from tests.report.samples import finding, report, shown

MACHINE = ROOT / "tests" / "fixtures" / "machines" / "sglang-verl-conflict.json"
NODES = tuple(f"node{n}" for n in range(1, 65))


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (NODES, "on all 64 nodes"),
        (NODES[:62], "on 62 of 64 nodes, not on node63, node64"),
        (("node7", "node9"), "on node7, node9 only"),
        (NODES[:20], "on 20 of 64 nodes: node1, node2, node3, …"),
    ],
)
def test_where(nodes: tuple[str, ...], text: str) -> None:
    assert where(nodes, NODES) == text


def test_a_span_of_nodes() -> None:
    assert span(("a", "b")) == "a, b"
    assert span(NODES) == "64 nodes (node1, node2, … node64)"


def on(node: str, found: Finding) -> Finding:
    return msgspec.structs.replace(found, node=node)


def warning(found: str) -> Finding:
    return finding("SYS003", "warn", f"expected 10 GiB, found {found}", expected="10 GiB", found=found)


def test_numbers_do_not_keep_findings_apart_and_words_do() -> None:
    found = [on("node1", warning("3 GiB")), on("node2", warning("4.5 GiB")), on("node3", warning("nothing at all"))]
    first, second = fold_findings(found)
    assert (first.nodes, first.alike) == (("node1", "node2"), False)
    assert second.nodes == ("node3",)
    assert "the numbers are those of node1" in first.where(NODES[:3])


def test_one_bad_node_among_many() -> None:
    good = finding("SYS003", "pass", "enough")
    checks = [on(node, warning("3 GiB") if node == "node7" else good) for node in NODES]
    lines = tuple(
        FamilyLine(
            family="SYS", title="System", status="warn" if node == "node7" else "pass", headline="Linux", node=node
        )
        for node in NODES
    )
    many = report(*checks, families=lines)
    (family,) = fold(many)
    assert (family.status, family.nodes) == ("warn", ("node7",))
    text = shown(many, "text")
    assert text.count("! SYS003") == 1
    assert "where     on node7 only" in text
    assert "[!] System  Linux (! on node7 only)" in text
    assert "on node7 only" in shown(many, "markdown")


def test_nodes_of_two_kinds() -> None:
    lines = tuple(
        FamilyLine(family="SYS", title="System", status="pass", headline="Debian" if n == 5 else "Ubuntu", node=node)
        for n, node in enumerate(NODES)
    )
    text = shown(report(*(on(node, finding("SYS001", "pass", "m")) for node in NODES), families=lines), "text")
    assert "Ubuntu (on 63 of 64 nodes, not on node6)" in text
    assert "on node6 only: Debian" in text


def test_sixty_four_nodes_are_as_long_as_one(tmp_path: Path) -> None:
    (facts,) = decode(MACHINE.read_bytes())
    nodes = tuple(msgspec.structs.replace(facts, node=node) for node in NODES)
    (tmp_path / "all.json").write_bytes(encode(nodes))
    one, all = rlcheck("env", "--facts", MACHINE), rlcheck("env", "--facts", tmp_path / "all.json")
    assert all.code == one.code == 1
    assert len(all.out.splitlines()) <= len(one.out.splitlines()) + 8
    assert "exit code 1: 1 check failed on 64 of 64 nodes" in all.out
    whole = json.loads(rlcheck("env", "--facts", tmp_path / "all.json", "--format", "json", "--select", "SYS001").out)
    assert {check["node"] for check in whole["checks"]} == set(NODES), "programs read every node"


def test_a_finding_about_all_nodes_is_not_about_the_one_whose_document_has_it() -> None:
    slow = finding("NCL043", "fail", "n2 and n3 are slow")
    rest = [on(node, finding("NCL004", "pass", "nothing set")) for node in ("n1", "n2", "n3")]
    lines = tuple(
        FamilyLine(family="NCL", title="NCCL", status="fail" if node == "n1" else "pass", headline="NCCL", node=node)
        for node in ("n1", "n2", "n3")
    )
    text = shown(report(on("n1", slow), *rest, families=lines), "text")
    assert "n2 and n3 are slow" in text
    assert "n1 only" not in text
