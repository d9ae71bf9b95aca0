"""For every check of a measurement: facts on which it fires, and facts on which it stays quiet."""

from __future__ import annotations

from typing import Any

import msgspec

from rlcheck.facts.base import absent, known
from rlcheck.facts.cluster import Card, ClusterFacts, MachineFacts, Member, RdmaCard
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Rank, RasFacts, Sample, Stall, Transport, Work, Wrong
from rlcheck.facts.document import Facts
from tests.measure.collectives.h200 import h200

MIB, GIB = 1 << 20, 1 << 30
NODES = ("n0", "n1", "n2", "n3")
H200 = "NVIDIA H200"
IB_LINKS = {"NET/IB/GDRDMA": 16, "P2P/CUMEM": 48}
ALL_NICS = tuple(f"mlx5_{i}" for i in range(8))
VERSIONS = {"nccl": "2.28.9", "torch": "2.11.0", "cuda": "13.0", "python": "3.12.3"}


def curve(busbw: float, latency_us: float = 80.0) -> tuple[Sample, ...]:
    """An all-reduce and an all-gather over small and large sizes, at `busbw` GB/s where it is large."""
    small = [
        Sample(collective="all_reduce", num_bytes=size, seconds=latency_us / 1e6, algbw=1e6, busbw=1e6)
        for size in (8, 1024)
    ]
    large = [
        Sample(collective=name, num_bytes=n, seconds=n / busbw / 1e9, algbw=busbw * 1e9, busbw=busbw * 1e9)
        for name in ("all_reduce", "all_gather")
        for n in (256 * MIB, GIB, 4 * GIB)
    ]
    return (*small, *large)


def transport(**changes: Any) -> Transport:
    ranks = tuple(map(str, range(32)))
    usual = {
        "library": "NCCL 2.28.9+cuda13.0",
        "network": "IB",
        "links": IB_LINKS,
        "nics": ALL_NICS,
        "interface": "eth0",
        "gdr": True,
        "rank_nics": {rank: (ALL_NICS[int(rank) % 8],) for rank in ranks},
        "rank_interfaces": dict.fromkeys(ranks, "eth0"),
    }
    return Transport(**{**usual, **changes})


def pair(one: str, two: str, busbw: float = 360.0, **changes: Any) -> GroupRun:
    ranks = tuple(r for i, node in enumerate(NODES) if node in (one, two) for r in range(8 * i, 8 * i + 8))
    return GroupRun(phase="pair", nodes=(one, two), ranks=ranks, round=0, samples=curve(busbw),
                    transport=known(transport()), **changes)  # fmt: skip


def over_all(busbw: float = 360.0, latency_us: float = 80.0, **changes: Any) -> GroupRun:
    usual = {
        "init_s": known(4.0),
        "samples": curve(busbw, latency_us),
        "dtypes_checked": ("bfloat16", "float32"),
        "transport": known(transport()),
    }
    return GroupRun(phase="all", nodes=NODES, ranks=tuple(range(32)), **{**usual, **changes})


def all_pairs(slow: float = 360.0, *names: str) -> tuple[GroupRun, ...]:
    """Every pair; those that hold all of `names` at the speed `slow`."""
    return tuple(
        pair(a, b, slow if names and set(names) <= {a, b} else 360.0)
        for i, a in enumerate(NODES)
        for b in NODES[i + 1 :]
    )


def rdma(count: int = 8) -> tuple[RdmaCard, ...]:
    card = RdmaCard(name="mlx5", state="ACTIVE", link_layer="InfiniBand", rate_gbps=400.0)
    return tuple(msgspec.structs.replace(card, name=f"mlx5_{i}") for i in range(count))


CARDS = (
    Card(name="lo", address="127.0.0.1"),
    Card(name="eth0", address="10.0.0.1", speed_mbps=25000),
    Card(name="docker0", address="172.17.0.1"),
    Card(name="eth1", address="10.1.0.1", speed_mbps=100000),
)


def survey(cards: tuple[Card, ...] = CARDS, ports: int = 8) -> ClusterFacts:
    members = tuple(
        Member(
            name=node, address=f"10.0.0.{i}", machine=known(MachineFacts(hostname=node, cards=cards, rdma=rdma(ports)))
        )
        for i, node in enumerate(NODES)
    )
    return ClusterFacts(via="ray", members=members)


def run(*groups: GroupRun, cluster: ClusterFacts | None = None, **changes: Any) -> Facts:
    """Four nodes of eight H200 with eight 400 Gb/s cards each."""
    usual: dict[str, Any] = {
        "ranks": tuple(
            Rank(rank=r, node=NODES[r // 8], local_rank=r % 8, device=H200, versions=VERSIONS) for r in range(32)
        ),
        "settings": {node: {"NCCL_DEBUG": "INFO"} for node in NODES},
        "ras": known(RasFacts(version="2.28.9", text="RUNNING OK")),
    }
    measured = CollectiveFacts(launcher="ray", backend="nccl", groups=groups, **{**usual, **changes})
    return Facts(node="n0", cluster=known(cluster or survey()), collectives=known(measured))


def ranks_with(node: str, **versions: str) -> tuple[Rank, ...]:
    """The usual ranks, those of `node` with other versions."""
    return tuple(
        Rank(rank=r, node=NODES[r // 8], local_rank=r % 8, device=H200,
             versions=VERSIONS | (versions if NODES[r // 8] == node else {}))
        for r in range(32)
    )  # fmt: skip


def single(links: dict[str, int], device: str = H200, nvls: bool = False, **settings: str) -> Facts:
    """One node of eight GPUs whose log says `links`."""
    group = GroupRun(phase="node", nodes=("n0",), ranks=tuple(range(8)), samples=curve(360.0),
                     transport=known(Transport(library="NCCL 2.28.9", links=links, nvls=nvls)))  # fmt: skip
    ranks = tuple(Rank(rank=r, node="n0", local_rank=r, device=device) for r in range(8))
    measured = CollectiveFacts(
        launcher="local", backend="nccl", ranks=ranks, groups=(group,), settings={"n0": settings}
    )
    return Facts(node="n0", collectives=known(measured))


def computed(*slow: int, by: float = 1.0, turns: tuple[float, ...] = (1.0, 1.0)) -> tuple[Work, ...]:
    """What 32 GPUs computed; those in SLOW at BY of the others' speed. TURNS: how much longer each turn took."""
    return tuple(
        Work(
            rank=r, kind=kind, seconds=tuple(2e-4 * (1 + 0.002 * (r % 5)) / (by if r in slow else 1) * t for t in turns)
        )
        for kind in ("product", "attention")
        for r in range(32)
    )


HEALTHY = run(over_all(work=computed()), *all_pairs())
ARRIVED = tuple(rank for rank in range(32) if rank != 11)
HUNG = over_all(
    samples=(),
    stall=Stall(step="all_reduce 1 MiB", deadline_s=20, arrived=ARRIVED, silent=(11,),
                last_lines={"11": ("NCCL INFO Channel 00/0 : 11[3] -> 12[4] via P2P/CUMEM",)}),
)  # fmt: skip
DIED = over_all(
    samples=(),
    stall=Stall(step="first all_reduce", deadline_s=20, arrived=ARRIVED, died={"11": "signal 9"},
                last_lines={"11": ("Killed",)}),
)  # fmt: skip
BAD = Wrong(collective="all_reduce", dtype="float32", rank=0, index=17, found="485.0", expected="496.0", suspects=(11,))
NO_ROUTE = tuple(
    GroupRun(phase="pair", nodes=(a, b), ranks=(), error="connection timed out") if "n3" in (a, b) else pair(a, b)
    for i, a in enumerate(NODES)
    for b in NODES[i + 1 :]
)
SOCKETS = transport(network="Socket", links={"NET/Socket": 8}, nics=("eth0",), rank_nics={}, gdr=False)
ONE_LOST = {rank: nics for rank, nics in transport().rank_nics.items() if rank != "11"}
NO_GDR = transport(links={"NET/IB": 16, "P2P/CUMEM": 48}, gdr=False)
DOCKER = transport(rank_interfaces={"0": "eth0", "8": "docker0"})

CASES: dict[str, tuple[Facts, Facts]] = {
    "NCL033": (run(over_all(), lost={"n4": "did not answer within 5 s"}), HEALTHY),
    "NCL034": (run(DIED), HEALTHY),
    "NCL035": (run(HUNG), HEALTHY),
    "NCL036": (run(over_all(init_s=known(130.0))), HEALTHY),
    "NCL037": (run(over_all(wrong=(BAD,))), HEALTHY),
    "NCL038": (h200(8, p2p=False), h200(8)),
    "NCL039": (run(pair("n0", "n1", 120.0)), HEALTHY),
    "NCL040": (run(over_all(150.0)), HEALTHY),
    "NCL041": (run(over_all(latency_us=9000.0)), h200(4)),
    "NCL042": (run(*all_pairs(200.0, "n2")), HEALTHY),
    "NCL043": (run(*all_pairs(200.0, "n1", "n2")), HEALTHY),
    "NCL044": (run(*NO_ROUTE), HEALTHY),
    "NCL058": (run(over_all(work=computed(11, by=0.8))), HEALTHY),
    "NCL045": (
        run(over_all(8.0, transport=known(SOCKETS)), settings={node: {"NCCL_IB_DISABLE": "1"} for node in NODES}),
        HEALTHY,
    ),
    "NCL046": (single({"SHM": 32}, NCCL_P2P_DISABLE="1"), single({"P2P/CUMEM": 192})),
    "NCL047": (
        single({"NET/Socket": 16}, "NVIDIA GeForce RTX 4090", NCCL_SHM_DISABLE="1"),
        single({"SHM": 16}, "NVIDIA GeForce RTX 4090"),
    ),
    "NCL048": (single({"P2P/CUMEM": 192}, NCCL_NVLS_ENABLE="0"), single({"P2P/CUMEM": 192}, nvls=True)),
    "NCL049": (run(over_all(transport=known(transport(rank_nics=ONE_LOST)))), HEALTHY),
    "NCL050": (
        run(over_all(transport=known(NO_GDR)), settings={node: {"NCCL_NET_GDR_LEVEL": "LOC"} for node in NODES}),
        HEALTHY,
    ),
    "NCL051": (run(over_all(transport=known(DOCKER))), HEALTHY),
    "NCL052": (run(over_all(), ranks=ranks_with("n2", nccl="2.27.5")), HEALTHY),
    "NCL053": (run(over_all(), settings={"n0": {}, "n1": {}, "n2": {"NCCL_ALGO": "Ring"}, "n3": {}}), HEALTHY),
    "NCL054": (
        run(over_all(), ras=known(RasFacts(version="2.28.9", problems=("DEAD: 1 job process is considered dead",)))),
        HEALTHY,
    ),
    "NCL055": (
        run(over_all(transport=known(transport(warnings=("rank 3: NET/IB : Got completion with error 12",))))),
        HEALTHY,
    ),
    "NCL056": (run(over_all(), cancelled="the time was used up after the pairs"), HEALTHY),
    "NCL057": (run(over_all(error="DistBackendError: Bootstrap : no socket interface found", samples=())), HEALTHY),
}  # fmt: skip

GLOO = msgspec.structs.replace(
    HEALTHY,
    collectives=known(
        CollectiveFacts(
            launcher="srun",
            backend="gloo",
            ranks=tuple(Rank(rank=i, node=node, local_rank=0, versions=VERSIONS) for i, node in enumerate(NODES)),
            groups=(
                GroupRun(phase="all", nodes=NODES, ranks=(0, 1, 2, 3), samples=curve(1.0), dtypes_checked=("float32",),
                         transport=absent("gloo keeps no log")),
            ),
            ras=absent("gloo has no RAS"),
        )
    ),
)  # fmt: skip
"""Four CPUs over TCP: nothing of NCCL's applies."""
