"""Made-up clusters for the checks that compare machines: a healthy one, and ways to spoil it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing, need
from rlcheck.facts.cluster import (
    Card,
    ClusterFacts,
    Disk,
    Gpu,
    MachineFacts,
    Member,
    RdmaCard,
    Registered,
)
from rlcheck.facts.document import Facts
from rlcheck.facts.reach import Contact

GIB = 1 << 30
VERSIONS = {
    "python": "3.11.7", "ray": "2.60.0", "torch": "2.11.0", "torch_cuda": "13.0", "torch_nccl": "2.28.9",
    "vllm": "0.26.0", "transformers": "5.17.0", "driver": "580.95.05", "kernel": "6.8.0-60", "os": "ubuntu 24.04",
}  # fmt: skip
PORTS = {"probe": 41000, "worker": 10002, "raylet": 40001, "object_manager": 40002}


def machine(number: int, **changes: Any) -> MachineFacts:
    """Node `number` as its agent reports it: eight H200s, eight InfiniBand ports."""
    usual: dict[str, Any] = {
        "hostname": f"node{number}",
        "versions": VERSIONS,
        "environ": {"NCCL_DEBUG": "WARN", "NODE_RANK": str(number)},
        "gpus": known(
            tuple(Gpu(name="NVIDIA H200", uuid=f"GPU-{number}-{i}", memory_bytes=140 * GIB) for i in range(8))
        ),
        "cards": (
            Card(name="docker0", address="172.17.0.1", mtu=1500),
            Card(name="eth0", address=f"10.0.0.{number}", speed_mbps=25000, mtu=9000),
        ),
        "rdma": tuple(
            RdmaCard(name=f"mlx5_{i}", state="ACTIVE", link_layer="InfiniBand", rate_gbps=400) for i in range(8)
        ),
        "memory_total_bytes": 2000 * GIB,
        "memory_available_bytes": 1900 * GIB,
        "cpus_online": 192,
        "cpus_allowed": 192,
        "shm": known(Disk(path="/dev/shm", total_bytes=1000 * GIB, free_bytes=900 * GIB)),
        "tmp": known(Disk(path="/tmp", total_bytes=800 * GIB, free_bytes=600 * GIB)),
        "memlock_bytes": -1,
        "nofile": 1048576,
        "clock_offset_s": known(0.0004 * number),
        "clock_error_s": 0.0002,
    }
    return MachineFacts(**{**usual, **changes})


def reached(
    number: int, peers: range, outcome: Callable[[int, int, str], str], rtt: Callable[[int, int], float]
) -> Any:
    """What node `number` found when it connected to the others."""
    contacts, names = [], []
    for peer in peers:
        for what, port in PORTS.items() if peer != number else ():
            how = outcome(number, peer, what)
            time = rtt(number, peer) if how == "open" else -1.0
            contacts.append(Contact(address=f"10.0.0.{peer}", port=port, what=what, outcome=how, rtt_s=time))
            names.append(f"node{peer}")
    return {"contacts": tuple(contacts), "peers": tuple(names)}


def cluster(
    size: int = 4,
    *,
    odd: dict[int, dict[str, Any]] | None = None,
    registered: dict[int, dict[str, float]] | None = None,
    silent: tuple[int, ...] = (),
    outcome: Callable[[int, int, str], str] = lambda a, b, what: "open",
    rtt: Callable[[int, int], float] = lambda a, b: 1e-4 + 1e-6 * (a + b),
    via: str = "ray",
) -> Facts:
    """A cluster of `size` nodes; `odd` changes the machine of some, `registered` what Ray has of some."""
    numbers = range(1, size + 1)
    members: list[Member] = []
    for n in numbers:
        resources = {"CPU": 192.0, "GPU": 8.0} | (registered or {}).get(n, {})
        fact: Fact[MachineFacts] = known(machine(n, **(odd or {}).get(n, {})))
        if n in silent:
            fact = missing(MissingKind.TIMEOUT, "did not answer within 5 s")
        members.append(
            Member(
                name=f"node{n}",
                address=f"10.0.0.{n}",
                is_head=n == 1,
                registered=Registered(resources=resources, object_store_bytes=186 * GIB) if via == "ray" else None,
                machine=fact,
                seconds=0.4,
                **({} if n in silent else reached(n, numbers, outcome, rtt)),
            )
        )
    return Facts(node="node1", cluster=known(ClusterFacts(via=via, members=tuple(members), seconds=1.5)))


def losing_large(to: int, source: int) -> Facts:
    """What node `source` sends to node `to` arrives in small packets only."""
    found = cluster()
    members = list(need(found.cluster).members)
    heard = members[to - 1]
    contacts = tuple(
        msgspec.structs.replace(contact, loses_large=contact.what == "probe" and peer == f"node{source}")
        for contact, peer in zip(heard.contacts, heard.peers, strict=True)
    )
    members[to - 1] = msgspec.structs.replace(heard, contacts=contacts)
    section = msgspec.structs.replace(need(found.cluster), members=tuple(members))
    return msgspec.structs.replace(found, cluster=known(section))


def with_environ(**variables: str) -> dict[str, Any]:
    return {"environ": {"NCCL_DEBUG": "WARN"} | variables}


def with_versions(**versions: str) -> dict[str, Any]:
    return {"versions": VERSIONS | versions}


def everywhere(changes: dict[str, Any], size: int = 4) -> dict[int, dict[str, Any]]:
    return dict.fromkeys(range(1, size + 1), changes)


def disk(total: float, free: float) -> Fact[Disk]:
    return known(Disk(path="/tmp", total_bytes=int(total * GIB), free_bytes=int(free * GIB)))


def gpus(number: int, used: int = 0, name: str = "NVIDIA H200") -> dict[str, Any]:
    return {"gpus": known(tuple(Gpu(name=name, memory_bytes=140 * GIB, used_bytes=used) for _ in range(number)))}


def without_gpus(facts: Facts, head: bool = False) -> Facts:
    """No node, or not the head, has GPUs."""
    found = facts.cluster.value
    assert found is not None
    members = []
    for member in found.members:
        mine = member.machine.value
        if mine is not None and (member.is_head or not head):
            plain = {name: v for name, v in mine.versions.items() if name != "driver"}
            mine = msgspec.structs.replace(mine, gpus=absent("no NVIDIA GPU"), versions=plain, rdma=())
            member = msgspec.structs.replace(member, machine=known(mine))
        members.append(member)
    return msgspec.structs.replace(facts, cluster=known(msgspec.structs.replace(found, members=tuple(members))))


HEALTHY = cluster()
DOWN = tuple(RdmaCard(name=f"mlx5_{i}", state="DOWN" if i == 3 else "ACTIVE", rate_gbps=400) for i in range(8))

CASES: dict[str, tuple[Facts, Facts]] = {
    "RAY045": (cluster(silent=(3,)), HEALTHY),
    "RAY046": (cluster(odd={3: {"clock_offset_s": known(-7.5)}}), HEALTHY),
    "RAY047": (cluster(odd={3: with_versions(ray="2.59.0")}), HEALTHY),
    "RAY048": (cluster(odd={3: with_versions(torch="2.10.0", torch_nccl="2.27.5")}), HEALTHY),
    "RAY049": (cluster(odd={3: with_versions(vllm="0.25.0")}), HEALTHY),
    "RAY050": (cluster(odd={3: with_versions(driver="570.124.06")}), HEALTHY),
    "RAY051": (cluster(odd={3: gpus(7)}), without_gpus(HEALTHY, head=True)),
    "RAY052": (cluster(registered={3: {"GPU": 16.0}}), HEALTHY),
    "RAY053": (cluster(odd={3: {"cpus_allowed": 8}}), HEALTHY),
    "RAY054": (cluster(odd={3: {"shm": disk(0.0625, 0.0625)}}), HEALTHY),
    "RAY055": (cluster(odd={3: {"tmp": disk(800, 2)}}), HEALTHY),
    "RAY056": (cluster(odd={3: gpus(8, used=60 * GIB)}), HEALTHY),
    "RAY057": (cluster(odd={3: with_environ(NCCL_IB_DISABLE="1")}), HEALTHY),
    "RAY058": (cluster(odd=everywhere(with_environ(NCCL_SOCKET_IFNAME="docker0"))),
               cluster(odd=everywhere(with_environ(NCCL_SOCKET_IFNAME="^docker,lo")))),
    "RAY059": (cluster(odd={3: with_environ(GLOO_SOCKET_IFNAME="ens5")}),
               cluster(odd=everywhere(with_environ(GLOO_SOCKET_IFNAME="eth0")))),
    "RAY060": (cluster(odd={3: {"rdma": DOWN}}), HEALTHY),
    "RAY061": (cluster(odd={3: {"memlock_bytes": 8 << 20}}), HEALTHY),
    "RAY062": (cluster(outcome=lambda a, b, what: "filtered" if b == 3 else "open"), HEALTHY),
    "RAY063": (cluster(outcome=lambda a, b, what: "filtered" if what == "worker" else "open"), HEALTHY),
    "RAY067": (losing_large(3, 2), HEALTHY),
    "RAY064": (cluster(rtt=lambda a, b: 0.03 if {a, b} == {2, 3} else 1e-4), HEALTHY),
}  # fmt: skip
