"""What to mend first stands first: by severity, but causes before what they cause."""

from __future__ import annotations

import random

import msgspec
import pytest

from rlcheck import judging
from rlcheck.check import Check, Status, Verdict, fail, unknown, warn
from rlcheck.facts.document import Facts
from rlcheck.finding import STATUS_ORDER, Finding, Waiver
from rlcheck.playbook import Library
from tests.core.samples import FACTS, failing, sample

FAMILIES = ("AAA", "BBB", "CCC")


def order(*checks: Check, nodes: tuple[Facts, ...] = (FACTS,)) -> list[str]:
    found = [finding for facts in nodes for finding in judging.judge(facts, checks, Library(()))]
    random.Random(3).shuffle(found)
    return [f"{finding.id}{finding.node[2:]}" for finding in judging.in_order(found, FAMILIES)]


def test_by_severity_then_family_then_id() -> None:
    statuses: tuple[Status, ...] = STATUS_ORDER
    checks = [sample(f"AAA{9 - n:03}", Verdict(status=s, message="m")) for n, s in enumerate(statuses)]
    assert order(*checks) == [f"AAA{9 - n:03}" for n in range(len(statuses))]
    assert order(failing("CCC001"), failing("AAA002"), failing("BBB001"), failing("AAA001")) == [
        "AAA001", "AAA002", "BBB001", "CCC001"]  # fmt: skip


def test_a_cause_stands_before_what_it_causes() -> None:
    assert order(failing("AAA001", "CCC001"), failing("CCC001")) == ["CCC001", "AAA001"]


def test_a_warning_that_causes_a_failure_stands_before_it() -> None:
    assert order(failing("AAA001", "CCC001"), sample("CCC001", warn("a", "b")), failing("BBB001")) == [
        "CCC001", "AAA001", "BBB001"]  # fmt: skip


def test_chains_and_diamonds() -> None:
    checks = (failing("AAA001", "BBB001", "BBB002"), failing("BBB001", "CCC001"), failing("BBB002", "CCC001"))
    assert order(*checks, failing("CCC001")) == ["CCC001", "BBB001", "BBB002", "AAA001"]


@pytest.mark.parametrize(
    "cause", [unknown("?"), Verdict(status="pass", message="ok"), Verdict(status="skip", message="")]
)
def test_what_is_not_wrong_causes_nothing(cause: Verdict) -> None:
    assert order(failing("AAA001", "CCC001"), sample("CCC001", cause)) == ["AAA001", "CCC001"]


def test_a_waived_cause_does_not_come_first() -> None:
    found = judging.judge(FACTS, (failing("AAA001", "CCC001"), failing("CCC001")), Library(()), {"CCC001": Waiver()})
    assert [finding.id for finding in judging.in_order(found, FAMILIES)] == ["AAA001", "CCC001"]


def test_causes_count_on_their_own_node_only() -> None:
    two = msgspec.structs.replace(FACTS, node="n2")
    here = judging.judge(FACTS, (failing("AAA001", "CCC001"),), Library(()))
    there = judging.judge(two, (failing("CCC001"),), Library(()))
    assert [finding.id for finding in judging.in_order((*here, *there), FAMILIES)] == ["AAA001", "CCC001"]
    assert order(failing("AAA001", "CCC001"), failing("CCC001"), nodes=(FACTS, two)) == [
        "CCC001", "AAA001", "CCC001", "AAA001"]  # fmt: skip


@pytest.mark.parametrize("length", [1, 2, 3, 30])
def test_a_cycle_ends_and_loses_nothing(length: int) -> None:
    checks = [failing(f"AAA{n:03}", f"AAA{(n + 1) % length:03}") for n in range(length)]
    assert sorted(order(*checks)) == [f"AAA{n:03}" for n in range(length)]


def test_everything_causes_everything() -> None:
    """Done in the blink of an eye: no path is walked twice."""
    ids = [f"AAA{n:03}" for n in range(60)]
    assert sorted(order(*(failing(id, *ids) for id in ids))) == ids


def test_nothing_is_lost_or_doubled_in_any_graph() -> None:
    generator = random.Random(7)
    for _ in range(200):
        ids = [f"{family}{n:03}" for family in FAMILIES for n in range(4)]
        checks = [
            sample(id, generator.choice([fail("a", "b"), warn("a", "b"), unknown("x")]),
                   caused_by=tuple(generator.sample(ids, 3)))
            for id in ids
        ]  # fmt: skip
        found = judging.judge(FACTS, checks, Library(()))
        ordered = judging.in_order(found, FAMILIES)
        assert sorted(f.id for f in ordered) == sorted(ids)
        assert_no_pointless_delay(ordered)


def assert_no_pointless_delay(ordered: tuple[Finding, ...]) -> None:
    """A failure stands below something milder only when that, or something after it, leads to the failure's causes."""
    causes = {finding.id: set(finding.caused_by) for finding in ordered}
    for index, finding in enumerate(ordered):
        if finding.status != "fail" and any(later.status == "fail" for later in ordered[index:]):
            assert any(finding.id in causes[later.id] for later in ordered[index + 1 :])
