"""What the checks of a measurement say, in numbers and names, and what they leave alone."""

from __future__ import annotations

import shlex

import msgspec
import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.collectives import GroupRun, Rank
from rlcheck.facts.document import Facts
from rlcheck.playbook import Library
from tests.checks.collectives.collective_cases import (
    CARDS,
    CASES,
    GLOO,
    HEALTHY,
    NODES,
    SOCKETS,
    all_pairs,
    computed,
    curve,
    over_all,
    rdma,
    run,
    single,
    survey,
    transport,
)
from tests.checks.network.judging import judge
from tests.measure.collectives.h200 import h200

MINE = tuple(check for check in family_checks("NCL") if check.id >= "NCL033")


@pytest.mark.parametrize(
    ("check_id", "status", "texts"),
    [
        ("NCL033", "fail", ["expected an answer from all 5 machines", "n4 (did not answer within 5 s)"]),
        ("NCL034", "fail", ["rank 11 on n1 (signal 9 in step first all_reduce)"]),
        ("NCL035", "fail", ["rank 11 on n1 never came"]),
        ("NCL036", "warn", ["expected groups that come up within 60 s, found all 4 nodes 130 s"]),
        ("NCL037", "fail", ["1 wrong ones, to blame: rank 11 on n1"]),
        ("NCL038", "fail", ["8 × NVIDIA H200", "GB/s on node0"]),
        ("NCL039", "fail", ["expected at least 320 GB/s in all_reduce at 4 GiB", "found 120 GB/s on n0 ↔ n1"]),
        ("NCL040", "fail", ["150 GB/s on all 4 nodes"]),
        ("NCL041", "warn", ["all 4 nodes 9000 µs (at most 1500)"]),
        ("NCL042", "fail", ["n2 at 56%"]),
        ("NCL043", "fail", ["n1 ↔ n2 at 56%"]),
        ("NCL044", "fail", ["none with n3"]),
        ("NCL045", "fail", ["n0 has 8 × 400 Gb/s infiniband", "sockets (NCCL_IB_DISABLE=1 is set)"]),
        ("NCL046", "fail", ["SHM on n0 (NCCL_P2P_DISABLE=1 is set)"]),
        ("NCL047", "warn", ["16 × NET/Socket on n0 (NCCL_SHM_DISABLE=1 is set)"]),
        ("NCL048", "info", ["not in use on n0 (NCCL_NVLS_ENABLE=0 is set)"]),
        ("NCL049", "warn", ["n1 used 7, others 8; not used: mlx5_3"]),
        ("NCL050", "warn", ["16 × NET/IB", "NCCL_NET_GDR_LEVEL=LOC is set"]),
        ("NCL051", "warn", ["docker0 on n1"]),
        ("NCL052", "fail", ["nccl 2.28.9 on n0, n1, n3, 2.27.5 on n2"]),
        ("NCL053", "warn", ["NCCL_ALGO: not set on n0, n1, n3, Ring on n2"]),
        ("NCL054", "warn", ["DEAD: 1 job process is considered dead"]),
        ("NCL055", "warn", ["1 lines: rank 3: NET/IB : Got completion with error 12"]),
        ("NCL058", "warn", ["GPU 3 on n1 at 80%"]),
        ("NCL056", "info", ["left out: the time was used up after the pairs"]),
    ],
)
def test_fires_with_numbers_and_names(check_id: str, status: str, texts: list[str]) -> None:
    fires, quiet = CASES[check_id]
    finding = judge(check_id, fires)
    assert finding.status == status
    assert all(text in finding.message for text in texts), finding.message
    assert judge(check_id, quiet).status == "pass"


def test_a_gpu_that_is_slow_beside_one_neighbour_alone_is_not_named() -> None:
    work = tuple(
        msgspec.structs.replace(one, seconds=(one.seconds[0] * 2, one.seconds[1])) if one.rank == 11 else one
        for one in computed()
    )
    assert judge("NCL058", run(over_all(work=work))).status == "pass"


@pytest.mark.parametrize(
    ("by", "device", "status"),
    [(0.94, "NVIDIA H200", "pass"), (0.5, "NVIDIA H200", "fail"), (0.7, "cpu", "pass"), (0.5, "cpu", "warn")],
)
def test_how_slow_is_too_slow_depends_on_the_device(by: float, device: str, status: str) -> None:
    ranks = tuple(Rank(rank=r, node=NODES[r // 8], local_rank=r % 8, device=device) for r in range(32))
    finding = judge("NCL058", run(over_all(work=computed(11, by=by)), ranks=ranks))
    assert finding.status == status
    if device == "cpu" and status == "warn":
        assert "rank 11 on n1 (cpu) at 50%" in finding.message


def test_gpus_of_another_kind_are_not_compared() -> None:
    """A node of weaker cards is no node of slow ones; a card alone of its kind has nobody to be compared with."""
    ranks = tuple(Rank(rank=r, node=NODES[r // 8], local_rank=r % 8, device="NVIDIA L4" if r == 11 else "NVIDIA H200")
                  for r in range(32))  # fmt: skip
    assert judge("NCL058", run(over_all(work=computed(11, by=0.1)), ranks=ranks)).status == "pass"
    assert judge("NCL058", run(over_all())).status == "skip"


def problems(facts: Facts) -> dict[str, str]:
    return {f.id: f.status for f in judging.judge(facts, MINE, Library()) if f.is_problem}


@pytest.mark.parametrize("facts", [HEALTHY, GLOO, h200(2), h200(4), h200(8)], ids=["ib", "gloo", "2", "4", "8"])
def test_a_healthy_measurement_has_no_problem(facts: Facts) -> None:
    assert problems(facts) == {}


def test_without_p2p_the_setting_is_told_and_the_rest_follows() -> None:
    findings = {f.id: f for f in judging.judge(h200(8, p2p=False), MINE, Library()) if f.is_problem}
    assert {"NCL046", "NCL038"} == set(findings)
    assert "NCCL_P2P_DISABLE=1" in findings["NCL046"].message
    assert "NCL046" in findings["NCL038"].caused_by
    first = judging.in_order(tuple(findings.values()), ("NCL",))[0]
    assert first.id == "NCL046"
    assert first.fixes[0].command == "unset NCCL_P2P_DISABLE"


def test_one_cause_is_told_once() -> None:
    """Sockets instead of RDMA make everything between nodes slow: each of those names its cause."""
    facts = CASES["NCL045"][0]
    found = {f.id: f for f in judging.judge(facts, MINE, Library()) if f.is_problem}
    assert set(found) == {"NCL045"}  # without RDMA there is no floor to fall short of
    lost = {f.id: f for f in judging.judge(CASES["NCL035"][0], MINE, Library()) if f.is_problem}
    assert set(lost) == {"NCL035"}


def test_the_last_lines_of_a_silent_rank_are_shown() -> None:
    details = judge("NCL035", CASES["NCL035"][0]).details
    assert "rank 11 on n1: never entered step all_reduce 1 MiB" in details
    assert any(line.startswith("rank 11 on n1 wrote: NCCL INFO Channel 00/0") for line in details)
    assert any("31 of 32 ranks entered it" in line for line in details)


def test_wrong_elements_are_shown() -> None:
    details = judge("NCL037", CASES["NCL037"][0]).details
    assert "all 4 nodes: all_reduce of float32 at rank 0 on n0, element 17: 485.0 instead of 496.0" in details


def test_unknown_hardware_prints_its_numbers() -> None:
    facts = single({"SHM": 16}, "NVIDIA GeForce RTX 4090")
    finding = judge("NCL038", facts)
    assert finding.status == "skip"
    assert "no expectation is known for 8 × NVIDIA GeForce RTX 4090; best 360 GB/s" in finding.message


def test_sockets_are_fine_where_there_is_no_rdma() -> None:
    facts = run(over_all(5.0, transport=known(SOCKETS)), cluster=survey(ports=0))
    assert judge("NCL045", facts).status == "skip"
    assert problems(facts) == {"NCL051": "warn"}  # eth1 is four times as fast


def test_a_slow_card_counts_for_sockets_alone() -> None:
    finding = judge("NCL051", run(over_all(transport=known(SOCKETS)), cluster=survey(ports=0)))
    assert "eth0 (25 Gb/s) on n0, where eth1 has 100 Gb/s" in finding.message
    assert judge("NCL051", HEALTHY).status == "pass"


@pytest.mark.parametrize(
    ("variable", "value", "status"),
    [
        ("GLOO_SOCKET_IFNAME", "eth7", "fail"),
        ("GLOO_SOCKET_IFNAME", "eth", "fail"),
        ("GLOO_SOCKET_IFNAME", "^lo", "fail"),
        ("GLOO_SOCKET_IFNAME", "eth0", "pass"),
        ("NCCL_SOCKET_IFNAME", "eth", "pass"),
        ("NCCL_SOCKET_IFNAME", "=eth", "fail"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", "pass"),
        ("NCCL_SOCKET_IFNAME", "ib0", "fail"),
        ("NCCL_SOCKET_IFNAME", "docker0", "warn"),
        ("NCCL_SOCKET_IFNAME", "eth1 ", "fail"),
    ],
)
def test_names_of_interfaces(variable: str, value: str, status: str) -> None:
    facts = run(over_all(), settings={"n0": {}, "n1": {variable: value}, "n2": {}, "n3": {}})
    finding = judge("NCL051", facts)
    assert finding.status == status
    if status != "pass":
        assert f"{variable}={shlex.quote(value)} on n1" in finding.message
        assert finding.fixes[0].command.startswith("export NCCL_SOCKET_IFNAME=eth1")


def test_loopback_between_nodes_fails() -> None:
    lo = transport(rank_interfaces={"0": "lo", "8": "eth0"})
    finding = judge("NCL051", run(over_all(transport=known(lo))))
    assert (finding.status, "lo on rank 0 on n0" in finding.message) == ("fail", True)


def test_rails_are_compared_with_active_ports_unless_a_list_is_meant() -> None:
    half = transport(rank_nics={str(r): (f"mlx5_{r % 4}",) for r in range(32)})
    finding = judge("NCL049", run(over_all(transport=known(half))))
    assert "n0 used 4 of 8 active ports" in finding.message
    listed = {node: {"NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_2,mlx5_3"} for node in NODES}
    assert judge("NCL049", run(over_all(transport=known(half)), settings=listed)).status == "pass"


def test_settings_that_may_differ_are_only_told() -> None:
    settings = {"n0": {"NCCL_SOCKET_IFNAME": "eth0"}, "n1": {"NCCL_SOCKET_IFNAME": "eno1"}}
    assert judge("NCL053", run(over_all(), settings=settings)).status == "info"


def test_a_little_slower_warns_and_much_slower_fails() -> None:
    assert judge("NCL042", run(*all_pairs(330.0, "n2"))).status == "warn"
    assert judge("NCL042", run(*all_pairs(352.0, "n2"))).status == "pass"
    assert judge("NCL042", run(*all_pairs(250.0, "n2"))).status == "fail"


def test_a_gloo_cluster_is_not_judged_by_noise() -> None:
    run_of = GLOO.collectives.value
    assert run_of is not None
    speeds = (1.0, 0.7, 1.2, 0.6, 0.9, 1.1)
    names = [(a, b) for i, a in enumerate(NODES) for b in NODES[i + 1 :]]
    groups = tuple(
        GroupRun(phase="pair", nodes=pair, ranks=(), samples=curve(bw)) for pair, bw in zip(names, speeds, strict=True)
    )
    facts = msgspec.structs.replace(GLOO, collectives=known(msgspec.structs.replace(run_of, groups=groups)))
    assert problems(facts) == {}


def test_fixtures_hold_together() -> None:
    assert len(rdma()) == 8
    assert {card.name for card in CARDS} == {"lo", "eth0", "docker0", "eth1"}
