"""What was seen on several nodes as one look: whose ranks are missing, and who is at the other end of a connection."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from rlcheck.diagnose.hang.live import judge
from rlcheck.facts.hang import HangFacts, Peer
from rlcheck.measure.hang.nodes import together, verdict_of
from tests.checks.hang.cases import ASLEEP, READS, SERVER, rank


def on_node(*numbers: int, odd: int = -1, elsewhere: tuple[int, ...] = ()) -> HangFacts:
    """Ranks NUMBERS of four, all in one all_reduce but ODD."""
    processes = tuple(rank(number, ASLEEP) if number == odd else rank(number) for number in numbers)
    return HangFacts(processes=processes, watched_s=6.0, elsewhere=elsewhere)


def named(facts: HangFacts) -> list[tuple[int | None, str, str]]:
    hang = judge(facts).hang
    return [] if hang is None else [(one.rank, one.node, one.kind) for one in hang.culprits]


def test_a_rank_of_another_node_holds_all_up_although_numbers_of_processes_are_alike() -> None:
    other = on_node(2, 3, odd=3, elsewhere=(0, 1))
    other = replace(other, processes=tuple(replace(one, pid=one.pid - 2) for one in other.processes))
    found = together({"a": on_node(0, 1, elsewhere=(2, 3)), "b": other}, (), {})
    assert named(found) == [(3, "b", "behind")]
    hang = judge(found).hang
    assert hang is not None
    assert hang.culprits[0].pid == 101
    assert "rank 3 (process 101 on b)" in hang.said


@pytest.mark.parametrize(
    ("empty", "lost", "missing", "elsewhere"),
    [((), {"b": "no route"}, (), (2, 3)), (("b",), {}, (2, 3), ()), ((), {}, (), (2, 3))],
)
def test_ranks_of_nodes_that_were_not_looked_at_are_not_called_gone(
    empty: tuple[str, ...], lost: dict[str, str], missing: tuple[int, ...], elsewhere: tuple[int, ...]
) -> None:
    found = together({"a": on_node(0, 1, elsewhere=(2, 3))}, empty, lost)
    assert (found.missing, found.elsewhere) == (missing, elsewhere)
    assert named(found) == [(number, "", "gone") for number in missing]
    assert bool(judge(found).doubt) == bool(elsewhere)


def test_a_server_on_another_node_is_found_by_the_address_of_its_end() -> None:
    asks = Peer(tid=101, how="socket", address="10.0.0.2:8000")
    first = replace(on_node(0), processes=(rank(0), rank(1, READS, peers=(asks,))))
    second = HangFacts(processes=(replace(SERVER, ends=("10.0.0.2:8000",)),), watched_s=6.0)
    found = together({"a": first, "b": second}, (), {})
    hang = judge(found).hang
    assert hang is not None
    assert [(one.role, one.node, one.pid) for one in hang.culprits] == [("reward", "b", 900)]


def test_the_stall_report_s_verdict_is_of_what_nodes_printed() -> None:
    good, bad = msgspec.json.encode(on_node(0, 1, 2, 3, odd=2)), b'{"none": "no job"'
    one = verdict_of({"a": good})
    assert one is not None
    assert one.said.startswith("3 processes wait for rank 2 (process 102)")
    assert verdict_of({"a": bad, "b": b""}) is None
    both = verdict_of({"a": good, "b": bad})
    assert both is not None
    assert [culprit.node for culprit in both.culprits] == ["a"]
