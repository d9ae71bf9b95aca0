"""The whole measurement on real gloo ranks: an agent and an address of its own for every machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcheck.facts.base import known
from rlcheck.facts.collectives import CollectiveFacts, GroupRun
from rlcheck.facts.document import Facts
from rlcheck.measure.cluster.switchboard import Switchboard
from rlcheck.measure.collectives import attribution
from rlcheck.measure.collectives.measuring import Request, measure
from rlcheck.measure.collectives.plan import COLLECTIVES, DTYPES
from tests.checks.network.judging import judge
from tests.measure.collectives.boards import machines

MIB = 1 << 20


def run(board: Switchboard, **options: object) -> CollectiveFacts:
    with board:
        return measure(board, Request(quick=True, max_bytes=MIB, step_timeout_s=4.0, **options))  # type: ignore[arg-type]


def last(facts: CollectiveFacts, phase: str = "all") -> GroupRun:
    return [group for group in facts.groups if group.phase == phase][-1]


def culprits(facts: CollectiveFacts) -> set[tuple[str, str]]:
    return {(name, suspect.kind) for suspect in attribution.suspects(facts) for name in suspect.names}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> CollectiveFacts:
    """Two machines with two ranks each, and one on which nothing can run."""
    broken = tmp_path_factory.mktemp("broken")
    (broken / "torch.py").write_text("raise ImportError('torch is broken here')")
    odd = {1: {"NCCL_IB_TIMEOUT": "22"}, 2: {"PYTHONPATH": str(broken)}}
    return run(machines(3, odd), ranks_per_node=2)


def test_healthy_machines_are_right_everywhere(healthy: CollectiveFacts) -> None:
    assert [(group.phase, group.ranks) for group in healthy.groups] == [
        ("node", (0, 1)),
        ("node", (2, 3)),
        ("all", (0, 1, 2, 3)),
    ]
    for group in healthy.groups:
        assert (group.stall, group.error, group.wrong) == (None, "", ())
        assert set(group.dtypes_checked) == set(DTYPES)
        assert group.init_s.value is not None
        assert {(s.collective, s.num_bytes) for s in group.samples} >= {(name, MIB) for name in COLLECTIVES}
    assert culprits(healthy) == {("c", "unreachable")}


def test_bandwidth_follows_from_time(healthy: CollectiveFacts) -> None:
    for sample in last(healthy).samples:
        assert sample.algbw == pytest.approx(sample.num_bytes / sample.seconds)
        factor = {"all_reduce": 1.5, "broadcast": 1.0, "sendrecv": 1.0}.get(sample.collective, 0.75)
        assert sample.busbw == pytest.approx(factor * sample.algbw)
        assert sample.num_calls > 0


def test_who_took_part_is_on_record(healthy: CollectiveFacts) -> None:
    assert [(rank.rank, rank.node, rank.local_rank, rank.device) for rank in healthy.ranks] == [
        (0, "a", 0, "cpu"),
        (1, "a", 1, "cpu"),
        (2, "b", 0, "cpu"),
        (3, "b", 1, "cpu"),
    ]
    assert {"python", "torch"} <= healthy.ranks[0].versions.keys()
    assert healthy.settings == {"b": {"NCCL_IB_TIMEOUT": "22"}}
    assert (healthy.backend, healthy.cancelled) == ("gloo", "")


def test_each_device_has_computed_beside_others_of_its_machine(healthy: CollectiveFacts) -> None:
    for group in healthy.groups:
        found = {(work.rank, work.kind) for work in group.work}
        ranks = group.ranks if group.phase == "node" else ()
        assert found == {(rank, kind) for rank in ranks for kind in ("product", "attention")}
        assert all(len(work.seconds) == 2 and min(work.seconds) > 0 for work in group.work)


def test_a_machine_without_a_working_torch_is_left_out_and_named(healthy: CollectiveFacts) -> None:
    assert healthy.lost == {"c": "ImportError: torch is broken here"}


def test_no_rank_is_left(healthy: CollectiveFacts) -> None:
    assert not [rank.pid for rank in healthy.ranks if alive(rank.pid)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.row("F54")
def test_ranks_that_stop_and_die_are_told_apart_and_the_rest_goes_on() -> None:
    facts = run(machines(4, {1: {"FAULT": "stop@5"}, 3: {"FAULT": "kill@5"}}))
    stalls = [group.stall for group in facts.groups if group.stall is not None]
    assert {stall.step for stall in stalls} == {"all_reduce correct"}
    assert {stall.silent for stall in stalls} <= {(1,), ()}
    assert {(rank, how) for stall in stalls for rank, how in stall.died.items()} == {("3", "signal 9")}
    stopped = next(stall for stall in stalls if stall.silent)
    assert 1 not in stopped.arrived
    assert stopped.waiting.keys() == {str(rank) for rank in stopped.arrived}
    assert culprits(facts) == {("b", "silent"), ("d", "dead")}
    assert last(facts).nodes == ("a", "c")
    assert last(facts).samples


@pytest.mark.parametrize(
    ("fault", "pairs", "kind"),
    [("leave-kill", "none", "dead"), ("idle-kill", "all", "dead")],
)
def test_a_rank_that_is_lost_between_two_groups_is_named_too(fault: str, pairs: str, kind: str) -> None:
    facts = run(machines(3, {1: {"FAULT": fault}}), pairs=pairs)
    assert culprits(facts) == {("b", kind)}
    assert last(facts).nodes == ("a", "c")


def test_a_rank_that_sleeps_in_a_collective_stands_elsewhere_than_the_others() -> None:
    facts = run(machines(3, {0: {"FAULT": "sleep@5"}}), pairs="none")
    stall = facts.groups[0].stall
    assert stall is not None
    assert stall.silent == (0,)
    assert stall.arrived == (1, 2)
    assert "sitecustomize" in stall.waiting["0"]
    assert last(facts).nodes == ("b", "c")


def test_whose_part_is_wrong_is_read_from_the_numbers() -> None:
    facts = run(machines(3, {1: {"FAULT": "drop"}}), pairs="none")
    assert culprits(facts) == {("b", "wrong")}
    wrong = facts.groups[0].wrong[0]
    assert (wrong.collective, wrong.dtype, wrong.suspects) == ("all_reduce", "float32", (1,))
    assert float(wrong.found) < float(wrong.expected)
    assert last(facts).nodes == ("a", "c")
    assert not last(facts).wrong


def test_where_the_numbers_do_not_tell_the_pairs_do() -> None:
    facts = run(machines(3, {1: {"FAULT": "add-before"}}))
    assert not any(wrong.suspects for group in facts.groups for wrong in group.wrong)
    assert culprits(facts) == {("b", "wrong")}
    assert last(facts).nodes == ("a", "c")


def test_a_slow_node_is_measured_slow_and_meets_its_partners_again() -> None:
    facts = run(machines(4, {3: {"FAULT": "slow"}}), pairs="quick")
    assert culprits(facts) == {("d", "slow")}
    assert {node for group in facts.groups if group.phase == "pair" and "d" in group.nodes for node in group.nodes} == {
        *"abcd"
    }
    assert last(facts).nodes == ("a", "b", "c")


@pytest.mark.long
def test_a_rank_that_computes_slowly_is_named_and_no_link() -> None:
    """It is stopped for three quarters of the time. Beside other tests any of three ranks is as slow on two cores."""
    facts = run(machines(3, {1: {"FAULT": "throttled"}}), pairs="none")
    assert not facts.groups[-1].stall, facts.groups[-1]
    slowest = attribution.work_scores(facts)[0]
    assert (slowest.node, slowest.label) == ("b", "rank 1 on b (cpu)")
    assert slowest.ratio < 0.6
    assert judge("NCL058", Facts(collectives=known(facts))).status == "warn"


def test_a_wrong_interface_is_named_with_the_machine() -> None:
    facts = run(machines(3, {1: {"GLOO_SOCKET_IFNAME": "no0"}}))
    errors = [group.error for group in facts.groups if group.error]
    assert errors
    assert all(error.startswith("rank 1 on b, init_process_group: ") and "no0" in error for error in errors)
    assert culprits(facts) == {("b", "unreachable")}
    assert last(facts).nodes == ("a", "c")
    assert last(facts).samples


LEFT_ALONE = """
import sys
from rlcheck.measure.collectives.measuring import Request, measure
from tests.measure.collectives.boards import machines
with machines(2, {1: {"FAULT": "sleep@3"}}) as board:
    measure(board, Request(quick=True), lambda what: print(*what, flush=True))
"""


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    """A doctor in the middle of a measurement that hangs."""
    process = subprocess.Popen([sys.executable, "-c", LEFT_ALONE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "over all nodes" not in process.stdout.readline():
        assert process.poll() is None
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_survives_the_doctor(busy: subprocess.Popen[str], number: signal.Signals) -> None:
    ranks = below(busy.pid)
    assert len(ranks) >= 4, "two agents and two ranks"
    os.kill(busy.pid, number)
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in ranks):
        assert time.monotonic() < deadline, ranks
        time.sleep(0.05)


def below(pid: int) -> list[int]:
    found = [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
    return found + [other for child in found for other in below(child)]
