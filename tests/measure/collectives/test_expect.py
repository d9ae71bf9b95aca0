"""What bandwidth is right: by machine, number of GPUs, NVLink SHARP, collective and size."""

from __future__ import annotations

import re

import msgspec
import pytest

from rlcheck.facts.base import known
from rlcheck.facts.cluster import ClusterFacts, MachineFacts, Member, RdmaCard
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Rank, Sample, Transport
from rlcheck.facts.document import Facts
from rlcheck.facts.network import NetworkFacts, RdmaDevice, RdmaPort
from rlcheck.measure.collectives.expect import active_rates, at, expectation, model_of, speeds, table
from tests.measure.collectives.h200 import h200

GIB = 1 << 30
MIB = 1 << 20


def group_of(facts: Facts) -> GroupRun:
    assert facts.collectives.value is not None
    return facts.collectives.value.groups[0]


def statuses(facts: Facts) -> dict[str, str]:
    return {speed.collective: speed.status for speed in speeds(facts, group_of(facts))}


ALL = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_the_recorded_host_is_right_with_each_number_of_gpus(gpus: int) -> None:
    """Four GPUs have an outlier (reduce-scatter at 128 MiB is a third of its neighbours) and odd latencies."""
    assert statuses(h200(gpus)) == dict.fromkeys(ALL, "ok")


def test_an_h800_is_measured_by_its_own_links() -> None:
    """NVLink of an H800 has 400 GB/s: 160 GB/s are right for it, and half of that is not."""
    assert [model_of(f"NVIDIA {name}") for name in ("H800", "H800 SXM5", "H800 PCIe")] == ["H800 SXM", "H800 SXM", ""]
    curve = next(one for one in table().curves if "H800 SXM" in one.models)
    assert 140 < at(curve.points, 4 * GIB) < 160


def test_without_peer_access_it_fails() -> None:
    assert statuses(h200(8, p2p=False)) == dict.fromkeys(ALL, "fail")
    assert all(speed.ratio < 0.06 for speed in speeds(h200(8, p2p=False), group_of(h200(8, p2p=False))))


@pytest.mark.parametrize(("factor", "status"), [(0.97, "ok"), (0.9, "ok"), (0.85, "warn"), (0.75, "fail")])
def test_how_much_slower_counts(factor: float, status: str) -> None:
    assert set(statuses(h200(8, factor=factor)).values()) == {status}


def test_one_bad_point_never_counts() -> None:
    facts = h200(4)
    speed = next(s for s in speeds(facts, group_of(facts)) if s.collective == "reduce_scatter")
    assert speed.ratio > 1
    assert speed.num_points >= 3


def with_samples(facts: Facts, *samples: Sample, **group) -> Facts:
    run = facts.collectives.value
    assert run is not None
    changed = msgspec.structs.replace(run.groups[0], samples=samples, **group)
    return msgspec.structs.replace(facts, collectives=known(msgspec.structs.replace(run, groups=(changed,))))


def sample(size: int, busbw: float, collective: str = "all_reduce") -> Sample:
    return Sample(collective=collective, num_bytes=size, seconds=1.0, algbw=busbw, busbw=busbw * 1e9)


def test_a_single_point_warns_at_most_and_two_are_enough_to_fail() -> None:
    assert statuses(with_samples(h200(8), sample(GIB, 12))) == {"all_reduce": "warn"}
    assert statuses(with_samples(h200(8), sample(GIB, 12), sample(2 * GIB, 12))) == {"all_reduce": "fail"}
    assert statuses(with_samples(h200(8), sample(GIB, 12), sample(2 * GIB, 362))) == {"all_reduce": "ok"}


def test_small_sizes_are_not_judged_by_bandwidth() -> None:
    assert statuses(with_samples(h200(8), *(sample(1 << n, 1.0) for n in range(3, 24)))) == {}


def test_nvlink_sharp_raises_what_is_expected_of_all_reduce_alone() -> None:
    off, on = h200(8), h200(8, nvls=True)
    low = expectation(off, group_of(off), "all_reduce", 8 * GIB)
    high = expectation(on, group_of(on), "all_reduce", 8 * GIB)
    assert low is not None
    assert high is not None
    assert 330e9 < low.busbw < 345e9
    assert 420e9 < high.busbw < 440e9
    assert expectation(on, group_of(on), "all_gather", GIB) == expectation(off, group_of(off), "all_gather", GIB)
    assert statuses(on)["all_reduce"] == "warn"  # 366 GB/s, where the switch reduces


def test_four_gpus_do_not_profit_from_nvlink_sharp() -> None:
    assert statuses(h200(4, nvls=True)) == dict.fromkeys(ALL, "ok")


def test_other_counts_take_the_lower_neighbour() -> None:
    facts = h200(8)
    run = facts.collectives.value
    assert run is not None
    six = msgspec.structs.replace(run.groups[0], ranks=tuple(range(6)))
    mine = expectation(facts, six, "all_reduce", 4 * GIB)
    four = expectation(h200(4), group_of(h200(4)), "all_reduce", 4 * GIB)
    assert mine is not None
    assert mine == four


@pytest.mark.parametrize(
    ("device", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", ""),
        ("NVIDIA H100 PCIe", ""),
        ("NVIDIA H100 NVL", ""),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("NVIDIA GeForce RTX 4090", ""),
        ("cpu", ""),
    ],
)
def test_models_are_told_apart(device: str, model: str) -> None:
    assert model_of(device) == model


def test_unknown_hardware_has_no_expectation() -> None:
    assert statuses(h200(8, device="NVIDIA GeForce RTX 4090")) == {}
    assert statuses(h200(8, device="NVIDIA H100 80GB HBM3"))["all_reduce"] == "ok"


def test_the_curve_is_followed_between_its_points() -> None:
    points = ((MIB, 10.0), (4 * MIB, 30.0))
    assert at(points, MIB // 2) is None
    assert at(points, 2 * MIB) == pytest.approx(20.0)
    assert at(points, 64 * MIB) == 30.0
    assert at((), MIB) is None


def two_nodes(cards: tuple[RdmaCard, ...], busbw: float, network: str = "IB", per_node: int = 8) -> Facts:
    members = tuple(
        Member(name=name, address=f"10.0.0.{i}", machine=known(MachineFacts(hostname=name, rdma=cards)))
        for i, name in enumerate(("a", "b"))
    )
    ranks = tuple(Rank(rank=i, node="ab"[i // per_node], local_rank=i % per_node, device="NVIDIA H200")
                  for i in range(2 * per_node))  # fmt: skip
    group = GroupRun(
        phase="all",
        nodes=("a", "b"),
        ranks=tuple(range(2 * per_node)),
        samples=tuple(sample(size, busbw) for size in (GIB, 2 * GIB, 4 * GIB)),
        transport=known(Transport(network=network)),
    )
    run = CollectiveFacts(launcher="ray", backend="nccl", ranks=ranks, groups=(group,))
    return Facts(cluster=known(ClusterFacts(via="ray", members=members)), collectives=known(run))


def ib(count: int, rate: float = 400.0, layer: str = "InfiniBand", state: str = "ACTIVE") -> tuple[RdmaCard, ...]:
    return tuple(RdmaCard(name=f"mlx5_{i}", state=state, link_layer=layer, rate_gbps=rate) for i in range(count))


def test_between_nodes_a_share_of_the_cards_is_expected() -> None:
    facts = two_nodes(ib(8), 365)
    expected = expectation(facts, group_of(facts), "all_reduce", 4 * GIB)
    assert expected is not None
    assert expected.busbw == pytest.approx(0.8 * 400e9)
    assert expected.derived
    assert statuses(facts) == {"all_reduce": "ok"}
    assert statuses(two_nodes(ib(8), 150)) == {"all_reduce": "fail"}
    assert statuses(two_nodes(ib(8, layer="Ethernet"), 270)) == {"all_reduce": "ok"}


def test_slow_ports_and_idle_ranks_are_not_counted() -> None:
    facts = two_nodes((*ib(8), RdmaCard(name="mlx5_9", state="ACTIVE", link_layer="Ethernet", rate_gbps=100)), 365)
    assert len(active_rates(facts, "a")) == 8
    assert statuses(two_nodes(ib(8), 45, per_node=1)) == {"all_reduce": "ok"}  # one GPU fills one card


def test_sockets_and_unknown_cards_have_no_floor() -> None:
    assert statuses(two_nodes(ib(8), 5, network="Socket")) == {}
    assert statuses(two_nodes((), 5)) == {}
    assert statuses(two_nodes(ib(8, state="DOWN"), 5)) == {}


def test_the_network_section_is_read_where_there_is_no_survey() -> None:
    port = RdmaPort(number=1, state="ACTIVE", link_layer="InfiniBand", rate_gbps=400.0)
    devices = tuple(RdmaDevice(name=f"mlx5_{i}", ports=(port,)) for i in range(2))
    facts = Facts(node="a", network=known(NetworkFacts(hostname="a", rdma=known(devices))))
    assert active_rates(facts, "a") == [("infiniband", 400.0)] * 2
    assert active_rates(facts, "b") == []


@pytest.mark.parametrize(
    ("model", "busbw"),
    [
        ("H200 SXM", {32 * MIB: 275.84, 128 * MIB: 401.93, 512 * MIB: 450.29, GIB: 463.58, 16 * GIB: 482.26}),
        (
            "B200",
            {32 * MIB: 325.97, 128 * MIB: 568.38, GIB: 723.34, 4 * GIB: 740.64, 8 * GIB: 839.07, 16 * GIB: 845.67},
        ),
    ],
)
def test_curves_of_nvlink_sharp_are_those_of_their_source(model: str, busbw: dict[int, float]) -> None:
    """The rows of both tables of one node in network/README.md of ml-engineering, commit 744d01e1."""
    curve = next(curve for curve in table().curves if model in curve.models and curve.nvls)
    assert {size: at(curve.points, size) for size in busbw} == busbw
    assert len(curve.points) == 10
    assert not curve.derived


def test_the_table_is_sound() -> None:
    for curve in table().curves:
        assert set(curve.models) <= set(table().models)
        assert curve.source, curve
        assert all(name in table().sources for name in curve.source)
        sizes = [size for size, _ in curve.points]
        assert sizes == sorted(set(sizes))
    for source in table().sources.values():
        assert re.match(r"https://|measured: |rlcheck's own choice", source)
