"""Checks that compare machines, beyond the two cases of each: who is named, and when they keep quiet."""

from __future__ import annotations

import random

import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.checks.cluster.environment import gloo_cards, nccl_cards
from rlcheck.checks.cluster.nodes import differing, minority, tables
from rlcheck.facts.base import MissingKind, known, missing
from rlcheck.facts.cluster import Card
from rlcheck.facts.document import Facts
from rlcheck.finding import Finding
from rlcheck.playbook import Library
from tests.checks.cluster.cluster_cases import (
    GIB,
    HEALTHY,
    VERSIONS,
    cluster,
    disk,
    everywhere,
    gpus,
    with_environ,
    with_versions,
    without_gpus,
)

CHECKS = family_checks("RAY")

LIBRARY = Library()
BY_ID = {check.id: check for check in CHECKS}
IDS = [f"RAY{n:03}" for n in range(45, 65)]


def judge(id: str, facts: Facts) -> Finding:
    return judging.judge(facts, (BY_ID[id],), LIBRARY)[0]


@pytest.mark.parametrize("size", [1, 2, 3, 64])
@pytest.mark.parametrize("via", ["ray", "ssh"])
def test_a_healthy_cluster_of_any_size(size: int, via: str) -> None:
    facts = cluster(size, via=via)
    found = {id: judge(id, facts) for id in IDS}
    assert {f.status for f in found.values()} <= {"pass", "skip"}, [f.message for f in found.values()]


@pytest.mark.parametrize("id", IDS)
def test_machines_that_know_nothing_break_no_check(id: str) -> None:
    bare = {"versions": {}, "environ": {}, "gpus": missing(MissingKind.ERROR, "x"), "cards": (), "rdma": (),
            "shm": missing(MissingKind.ERROR, "x"), "tmp": missing(MissingKind.ERROR, "x"), "cpus_allowed": 0,
            "memory_total_bytes": 0, "memory_available_bytes": 0, "memlock_bytes": 0, "nofile": 0,
            "clock_offset_s": missing(MissingKind.TIMEOUT, "x")}  # fmt: skip
    for facts in (cluster(odd={3: bare}), cluster(odd=everywhere(bare)), cluster(silent=(1, 2, 3, 4)), cluster(0)):
        assert judge(id, facts).status != "error", judge(id, facts).message


def test_the_minority_is_named() -> None:
    values = {f"node{n}": "2.11" for n in range(1, 65)} | {"node7": "2.10", "node9": "2.10"}
    assert differing(values) == "2 of 64 nodes (node7, node9) have 2.10, all others 2.11"
    assert minority(values) == ["node7", "node9"]
    assert differing({"a": "1", "b": "2"}) == "a has 1; b has 2"
    assert minority({"a": "1", "b": "2"}) == []
    assert differing({"a": "1", "b": "1"}) == ""


def test_python_without_ray_is_only_noted() -> None:
    plain = {name: version for name, version in VERSIONS.items() if name != "ray"}
    odd = everywhere({"versions": plain}) | {2: {"versions": plain | {"python": "3.11.9"}}}
    assert judge("RAY047", cluster(odd=odd, via="ssh")).status == "info"
    assert judge("RAY047", cluster(odd={2: with_versions(python="3.11.9")})).status == "fail"


def test_torch_that_differs_is_worse_with_another_nccl() -> None:
    assert judge("RAY048", cluster(odd={2: with_versions(torch="2.11.1")})).status == "warn"
    assert judge("RAY048", cluster(odd={2: with_versions(torch_nccl="2.27.5")})).status == "fail"


def test_clocks_within_what_can_be_known() -> None:
    slow = {"clock_offset_s": known(1.8), "clock_error_s": 1.0}
    assert judge("RAY046", cluster(odd={2: slow})).status == "pass"
    far = judge("RAY046", cluster(odd={2: {"clock_offset_s": known(-4000.0)}}))
    assert "node2 is 67 min behind" in far.found
    assert "munge" in far.message


def test_gpus_that_ray_was_not_given() -> None:
    assert judge("RAY052", cluster(registered={3: {"GPU": 4.0}})).status == "warn"
    four = {n: {"GPU": 4.0} for n in range(1, 5)}
    assert judge("RAY052", cluster(registered=four)).status == "info", "the same everywhere looks like a decision"
    assert judge("RAY053", cluster(registered={1: {"CPU": 0.0}})).status == "pass", "a head that runs no tasks"
    idle = judge("RAY053", cluster(registered={3: {"CPU": 0.0}}))
    assert (idle.status, "node3 registered 0 CPUs" in idle.message) == ("warn", True)
    assert judge("RAY052", cluster(registered={1: {"GPU": 0.0}})).status == "info", "a head that runs no tasks"
    assert judge("RAY052", cluster(odd={3: gpus(7)})).status == "fail", "one was lost after `ray start`"


def test_a_driver_without_gpus() -> None:
    facts = cluster(odd={3: gpus(0)})
    assert "node3" in judge("RAY051", facts).found
    assert judge("RAY051", without_gpus(HEALTHY)).status == "skip"


def test_a_run_that_goes_on_is_no_fault() -> None:
    assert judge("RAY056", cluster(odd=everywhere(gpus(8, used=90 * GIB)))).status == "info"


def test_memory_and_object_store() -> None:
    short = {"memory_available_bytes": 30 * GIB}
    assert "30.0 GiB of 2000 GiB memory" in judge("RAY055", cluster(odd={2: short})).found
    assert "64 MiB for a store of 186 GiB" in judge("RAY054", cluster(odd={2: {"shm": disk(0.0625, 0.01)}})).found


def test_what_may_differ_may_differ() -> None:
    own = ("NODE_RANK", "CUDA_VISIBLE_DEVICES", "RAY_RAYLET_PID", "VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "HOSTNAME")
    odd = {n: with_environ(**dict.fromkeys(own, str(n))) for n in range(1, 5)}
    assert judge("RAY057", cluster(odd=odd)).status == "pass"
    two = judge("RAY057", cluster(odd={2: with_environ(http_proxy="http://p:1", PYTHONPATH="/x")}))
    assert two.status == "warn"
    assert len(two.details) == 2


CARDS = tuple(Card(name=name, address=f"10.0.0.{n}") for n, name in enumerate(("lo", "docker0", "eth0", "eth1")))


@pytest.mark.parametrize(
    ("pattern", "nccl", "gloo"),
    [
        ("eth", ["eth0", "eth1"], []),
        ("=eth0", ["eth0"], []),
        ("^lo,docker", ["eth0", "eth1"], []),
        ("eth0,eth1", ["eth0", "eth1"], ["eth0", "eth1"]),
        ("ib0", [], []),
    ],
)
def test_how_interfaces_are_chosen(pattern: str, nccl: list[str], gloo: list[str]) -> None:
    assert [card.name for card in nccl_cards(pattern, CARDS)] == nccl
    assert [card.name for card in gloo_cards(pattern, CARDS)] == gloo


def test_another_network_for_nccl_is_fine_when_all_use_it() -> None:
    def cards(n: int) -> dict[str, object]:
        own = (Card(name="eth0", address=f"10.0.0.{n}"), Card(name="ib0", address=f"10.9.0.{n}"))
        return with_environ(NCCL_SOCKET_IFNAME="ib0") | {"cards": own}

    odd = {n: cards(n) for n in range(1, 5)}
    assert judge("RAY058", cluster(odd=odd)).status == "info"
    odd[2] |= with_environ(NCCL_SOCKET_IFNAME="eth0")
    assert judge("RAY058", cluster(odd=odd)).status == "warn"


@pytest.mark.parametrize("seed", range(20))
def test_the_node_that_nothing_reaches_is_named_wherever_it_is(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice((3, 5, 9, 16))
    bad = rng.randint(1, size)
    how = rng.choice(("filtered", "refused"))
    unreached = judge("RAY062", cluster(size, outcome=lambda a, b, what: how if b == bad else "open"))
    assert unreached.found.startswith(f"nothing reaches node{bad},")
    assert f"({how})" in unreached.found
    mute = judge("RAY062", cluster(size, outcome=lambda a, b, what: how if a == bad else "open"))
    assert mute.found.startswith(f"node{bad} reaches no node")


def test_a_broken_asker_is_no_evidence_and_a_stranger_is() -> None:
    assert judge("RAY062", cluster(outcome=lambda a, b, what: "error" if a == 2 else "open")).status == "skip"
    assert judge("RAY063", cluster(outcome=lambda a, b, what: "error" if a == 2 else "open")).status == "pass"
    everybody = judge("RAY062", cluster(outcome=lambda a, b, what: "error" if b == 2 else "open"))
    assert everybody.status == "fail"
    assert everybody.found.startswith("nothing reaches node2")
    assert judge("RAY062", cluster(2, outcome=lambda a, b, what: "error")).status == "fail", "docker0 is everywhere"


@pytest.mark.parametrize("id", ["RAY058", "RAY059"])
def test_loopback_for_collectives(id: str) -> None:
    variable = "NCCL_SOCKET_IFNAME" if id == "RAY058" else "GLOO_SOCKET_IFNAME"
    found = judge(id, cluster(odd={2: with_environ(**{variable: "lo"})}))
    assert "lo (127.0.0.1) on node2, the loopback interface" in found.found


def test_ports_that_are_blocked_in_one_direction() -> None:
    found = judge("RAY063", cluster(outcome=lambda a, b, what: "filtered" if (what, b) == ("worker", 3) else "open"))
    assert found.found == "the worker ports (10002, filtered): nothing reaches node3, while it reaches the others"
    chosen = judge("RAY063", cluster(outcome=lambda a, b, what: "refused" if what == "probe" else "open"))
    assert chosen.found == "a port that the system chose (41000, refused): between all nodes"
    assert (
        judge("RAY062", cluster(outcome=lambda a, b, what: "refused" if what == "probe" else "open")).status == "pass"
    )


def test_slow_node_and_slow_pair() -> None:
    node = judge("RAY064", cluster(6, rtt=lambda a, b: 0.05 if 4 in (a, b) else 1e-4))
    assert node.found.startswith("node4 to 5 of the others")
    assert judge("RAY064", cluster(6, rtt=lambda a, b: 9e-4 if 4 in (a, b) else 1e-4)).status == "pass", "noise"


def test_every_threshold_has_its_reason() -> None:
    for name, number in tables().thresholds.items():
        assert number.value > 0, name
        assert number.why, name
        assert number.source.startswith("https://"), name
