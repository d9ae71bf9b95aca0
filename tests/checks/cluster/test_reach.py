"""The way to a head: each fault has its own words, its own fix and its place in the chain (F50, F05, F71)."""

import msgspec
import pytest

from rlcheck import judging
from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.checks.cluster.placement import why_infeasible
from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.ray import RayFacts, RayProcess
from rlcheck.facts.reach import PendingGroup, PortOwner, Resolution, Route, Speaker, WantedRun
from rlcheck.playbook import Library
from tests.checks.cluster.reach_cases import (
    CASES,
    GCS_SERVER,
    HEAD,
    HEALTHY,
    HERE,
    LOST,
    NODES,
    TOO_BIG,
    WANTED,
    WORKER,
    closed,
    contact,
    gcs,
    node,
    ports_of,
    way,
    workers,
)

CHECKS = family_checks("RAY")

BY_ID = {check.id: check for check in CHECKS}
MINE = [BY_ID[id] for id in CASES]


def judge(check_id: str, facts: Facts) -> Verdict:
    return BY_ID[check_id].judge(facts)


@pytest.mark.parametrize(
    ("check_id", "status", "words"),
    [
        ("RAY031", "fail", "expected an address for head, found none (Name or service not known)"),
        ("RAY032", "fail", "expected a route to 10.0.0.5, found none (Network is unreachable)"),
        ("RAY033", "warn", "http_proxy set and 10.0.0.5 not in no_proxy"),
        ("RAY034", "fail", "connection refused: the machine answers, but nothing listens there"),
        ("RAY035", "fail", "expected the GCS of a Ray head on 10.0.0.5:6379, found a Redis server (+PONG)"),
        ("RAY036", "fail", "none: it accepts connections and does not work"),
        ("RAY037", "fail", "found no token on this machine"),
        (
            "RAY038",
            "fail",
            "expected Ray 2.60.0 and Python 3.11.7, as in the cluster, found Ray 2.59.0 and Python 3.11.2",
        ),
        ("RAY039", "warn", "gcs_server (pid 10, bob) on loopback only"),
        ("RAY040", "warn", "1 lost within the last hour: node-7 (10.0.0.7)"),
        ("RAY041", "fail", "node-2 (172.17.0.2) advertises an address of Docker's default bridge"),
        ("RAY042", "fail", "actors: a bundle needs 16 GPU on one node, no node has more than 8 GPU"),
        ("RAY043", "fail", "expected 2 nodes with 8 GPUs, found 1 of 1 nodes with so many"),
        ("RAY044", "warn", "dashboard refused on port 8265"),
    ],
)
def test_fires_with_its_numbers_and_stays_quiet(check_id: str, status: str, words: str):
    loud, quiet = (judge(check_id, facts) for facts in CASES[check_id])
    assert (loud.status, words in loud.message) == (status, True), loud.message
    assert quiet.status in ("pass", "skip"), quiet.message


def test_a_healthy_way_has_no_finding():
    found = judging.judge(HEALTHY, MINE, Library())
    assert [f.id for f in found if f.status not in ("pass", "skip")] == []


def test_only_the_first_broken_layer_is_a_problem():
    nothing = absent("the head's name has no address")
    later = dict.fromkeys(("route", "tcp", "speaker", "gcs", "node_ports"), nothing)
    facts = way(head="head", resolution=known(Resolution(name="head", error="Name or service not known")), **later)
    problems = [finding.id for finding in judging.judge(facts, MINE, Library()) if finding.is_problem]
    assert problems == ["RAY031"]
    problems = [
        f.id for f in judging.judge(closed("filtered", "no answer within 2.0 s"), MINE, Library()) if f.is_problem
    ]
    assert problems == ["RAY034"]


@pytest.mark.parametrize(
    ("facts", "words", "fix"),
    [
        (
            closed("refused", "Connection refused"),
            "connection refused: the machine answers",
            "Start the head on port 6379",
        ),
        (
            closed("filtered", "no answer within 2.0 s"),
            "packets are dropped on the way",
            "Let TCP port 6379 on 10.0.0.5",
        ),
        (closed("unreachable", "No route to host"), "unreachable: No route to host", "Correct 10.0.0.5"),
        (
            closed("refused", **HERE),
            "nothing listens on port 6379 of this machine, and no Ray head runs",
            "Start the head",
        ),
        (
            closed("refused", **HERE, owners=(PortOwner(address="127.0.0.1", pid=7, process="ssh", user="bob"),)),
            "ssh (pid 7, bob) listens on 127.0.0.1:6379 only",
            "Start the head",
        ),
    ],
)
def test_a_closed_port_says_how_and_brings_the_fix_for_that(facts: Facts, words: str, fix: str):
    finding = judging.judge(facts, (BY_ID["RAY034"],), Library())[0]
    assert words in finding.message
    assert finding.fixes[0].title.startswith(fix)


def test_a_head_on_another_port_of_this_machine_is_named():
    head = RayProcess(pid=3, name="gcs_server", gcs_address=f"{HEAD}:6380")
    facts = closed("refused", **HERE)
    facts = msgspec.structs.replace(facts, ray=known(RayFacts(uid=0, processes=known((head,)))))
    assert "the head that runs here is 10.0.0.5:6380" in judge("RAY034", facts).message


def test_of_several_addresses_one_that_answers_is_enough():
    both = (contact("::1", outcome="refused"), contact("127.0.0.1"))
    assert judge("RAY034", way(tcp=known(both))).status == "info"


def test_a_closed_port_is_not_blamed_on_a_proxy():
    verdict = judge("RAY034", closed("filtered", "no answer within 2.0 s", proxies={"http_proxy": HEAD}))
    assert "http_proxy: not used for this connection" in verdict.details[-1]


def test_no_proxy_is_completed_with_every_node():
    facts = way({"no_proxy": "example.com,localhost", "NO_PROXY": "wiki"}, proxies={"http_proxy": WORKER})
    assert judge("RAY033", facts).params["no_proxy"] == f"example.com,localhost,wiki,127.0.0.1,{HEAD},{WORKER}"
    told = judge("RAY033", way(grpc_proxies={"https_proxy": HEAD}))
    assert (told.status, "proxy in https_proxy" in told.message) == ("fail", True)


@pytest.mark.parametrize(
    ("address", "status"), [("127.0.1.1", "warn"), ("10.0.0.5", "pass")]
)  # fmt: skip
def test_a_name_that_means_loopback(address: str, status: str):
    facts = way(head="head", resolution=known(Resolution(name="head", addresses=(address,))))
    assert judge("RAY031", facts).status == status
    local = way(head="localhost", resolution=known(Resolution(name="localhost", addresses=("127.0.0.1",))))
    assert judge("RAY031", local).status == "pass"


def test_a_bridge_of_this_machine_matters_only_when_nobody_answers():
    bridge = {"route": known(Route(destination=HEAD, source="172.17.0.1", interface="docker0"))}
    assert judge("RAY032", way(**bridge)).status == "pass"
    assert "docker0" in judge("RAY032", closed("filtered", **bridge)).message


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("dashboard", "Ray's dashboard"),
        ("ray-client", "the Ray Client's server"),
        ("http", "an HTTP server (HTTP/1.0 404)"),
        ("silent", "says nothing"),
        ("closes", "hangs up"),
        ("grpc", "not the GCS"),
        ("tls", "a port that speaks TLS"),
        ("other", "another service"),
    ],
)
def test_strangers_at_the_port(kind: str, words: str):
    owner = PortOwner(address="0.0.0.0", pid=9, process="python", program="-m http.server", user="eve")
    verdict = judge("RAY035", way(speaker=known(Speaker(kind=kind, detail="HTTP/1.0 404")), **HERE, owners=(owner,)))
    assert verdict.status == "fail"
    assert words in verdict.message
    assert "held by python -m http.server (pid 9, eve)" in verdict.message


def test_tls_is_no_fault_where_ray_uses_it():
    assert judge("RAY035", way({"RAY_USE_TLS": "1"}, speaker=known(Speaker(kind="tls")))).status == "info"


@pytest.mark.parametrize(
    ("environ", "here", "status", "words"),
    [
        ({}, False, "warn", "RAY_AUTH_MODE not set: `ray start --address` and ray.init(address) send none"),
        ({"RAY_AUTH_MODE": "disabled"}, False, "warn", "RAY_AUTH_MODE=disabled"),
        ({"RAY_AUTH_MODE": "token"}, False, "pass", "/t"),
        ({}, True, "pass", "/t"),
    ],
)
def test_the_right_token_must_also_be_sent(environ: dict[str, str], here: bool, status: str, words: str):
    facts = way(environ, gcs=gcs(asks_for_token=True, token_sent=True, token_source="/t"), **(HERE if here else {}))
    verdict = judge("RAY037", facts)
    assert (verdict.status, words in verdict.message) == (status, True), verdict.message


def test_another_token_is_told_from_none_and_stops_what_comes_later():
    refused = gcs(asks_for_token=True, needs_token=True, token_sent=True, token_source="/t", ray_version=absent("-"),
                  nodes=absent("-"), pending_groups=absent("-"))  # fmt: skip
    facts = way(gcs=refused, node_ports=absent("-"))
    assert "another one in /t" in judge("RAY037", facts).message
    assert [f.id for f in judging.judge(facts, MINE, Library()) if f.is_problem] == ["RAY037"]


@pytest.mark.parametrize(
    ("environ", "ray", "python", "status"),
    [
        ({}, "2.60.0", "3.11.7", "pass"),
        ({}, "2.59.0", "3.11.7", "fail"),
        ({}, "2.60.0", "3.11.9", "fail"),
        ({"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor"}, "2.60.0", "3.11.9", "info"),
        ({"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor"}, "2.60.0", "3.12.9", "fail"),
        ({}, "", "3.12.9", "skip"),
    ],
)
def test_versions(environ: dict[str, str], ray: str, python: str, status: str):
    assert judge("RAY038", way(environ, own_ray_version=ray, own_python_version=python)).status == status


def test_a_cluster_without_a_living_node_is_not_healthy() -> None:
    """A head whose raylet has not registered yet, and one that has only dead nodes."""
    for nodes in ((), (LOST,)):
        found = judge("RAY036", way(gcs=gcs(nodes, num_dead=len(nodes))))
        assert (found.status, found.headline) == ("fail", "The cluster has no node")


def test_a_machine_that_joined_twice() -> None:
    found = judge("RAY068", CASES["RAY068"][0])
    assert "3 nodes: node-6 (10.0.0.6) joined 2 times" in found.message
    assert found.params == {"address": WORKER, "head": f"{HEAD}:6379"}


def test_an_open_gcs_on_a_public_address():
    facts = way(**HERE, owners=(GCS_SERVER,), addresses=("127.0.0.1", "8.8.8.8"))
    assert "open on 8.8.8.8:6379 without one" in judge("RAY039", facts).message
    closed_by_token = way(**HERE, owners=(GCS_SERVER,), addresses=("8.8.8.8",), gcs=gcs(asks_for_token=True))
    assert judge("RAY039", closed_by_token).status == "pass"


def test_a_node_that_came_back_is_not_lost():
    back = node(LOST.address)
    assert "1 came back" in judge("RAY040", way(gcs=gcs((*NODES, back, LOST)))).message
    old = msgspec.structs.replace(LOST, end_age_s=7200.0)
    assert judge("RAY040", way(gcs=gcs((*NODES, old)))).status == "pass"


@pytest.mark.parametrize(
    ("nodes", "outcomes", "status", "words"),
    [
        (NODES, {"raylet": "filtered"}, "fail", "node-6 (10.0.0.6) does not answer: raylet filtered"),
        (NODES, {"raylet": "refused", "object_manager": "refused"}, "fail", "raylet and object manager refused"),
        (NODES, {"agent": "refused"}, "info", "1 dashboard agents do not answer (10.0.0.6:52365 refused)"),
        ((node(), node("127.0.0.1")), {}, "fail", "advertises loopback"),
        ((node("127.0.0.1"),), {}, "pass", "1 nodes"),
        ((node("172.17.0.2"),), {}, "pass", "1 nodes"),
        ((node(), node("172.17.0.2")), {}, "fail", "Docker's default bridge"),
    ],
)
def test_advertised_addresses(nodes: tuple, outcomes: dict[str, str], status: str, words: str):
    verdict = judge("RAY041", way(gcs=gcs(nodes), node_ports=known(ports_of(nodes, **outcomes))))
    assert (verdict.status, words in verdict.message) == (status, True), verdict.message


def group(strategy: str, *bundles: dict[str, float], age_s: float = 99.0) -> PendingGroup:
    return PendingGroup(group_id="ab", name="pool", state="PENDING", strategy=strategy, bundles=bundles, age_s=age_s)


@pytest.mark.parametrize(
    ("pending", "words"),
    [
        (group("PACK", {"GPU": 9.0}), "no node has more than 8 GPU"),
        (group("PACK", {"accelerator_type:H100": 0.1}), "no node has any accelerator_type:H100"),
        (group("PACK", {"GPU": 8.0, "CPU": 65.0}), "no node has more than 64 CPU"),
        (group("STRICT_PACK", *[{"GPU": 1.0}] * 9), "STRICT_PACK needs 9 GPU on one node"),
        (group("STRICT_SPREAD", *[{"CPU": 1.0}] * 3), "STRICT_SPREAD needs 3 nodes, the cluster has 2"),
        (group("PACK", *[{"GPU": 8.0}] * 3), "it needs 24 GPU, the whole cluster has 16 GPU"),
        (group("STRICT_PACK", *[{"GPU": 1.0}] * 8), ""),
        (group("PACK", *[{"GPU": 0.1}] * 160), ""),
    ],
)
def test_why_a_group_can_never_be_placed(pending: PendingGroup, words: str):
    reason = why_infeasible(pending, NODES)
    assert words in reason
    assert bool(reason) == bool(words)


def test_a_group_that_waits_for_others():
    waiting = judge("RAY042", way(gcs=gcs(groups=(group("PACK", {"GPU": 8.0}),))))
    assert (waiting.status, "8 GPU for 2 min, which other jobs hold" in waiting.message) == ("warn", True)
    assert judge("RAY042", way(gcs=gcs(groups=(group("PACK", {"GPU": 8.0}, age_s=3.0),)))).status == "info"
    assert "2 that never can" in judge("RAY042", way(gcs=gcs(groups=(TOO_BIG, TOO_BIG)))).message


@pytest.mark.parametrize(
    ("wanted", "available", "status"),
    [
        (WANTED, {"GPU": 8.0}, "pass"),
        (WANTED, {"CPU": 64.0}, "warn"),
        (WantedRun(nodes=3), {"GPU": 8.0}, "fail"),
        (WantedRun(nodes=2), {"CPU": 1.0}, "pass"),
        (WantedRun(gpus_per_node=4), {"GPU": 4.0}, "pass"),
        (WantedRun(), {}, "skip"),
    ],
)
def test_whether_a_run_fits(wanted: WantedRun, available: dict[str, float], status: str):
    nodes = (node(), node(WORKER, available=available))
    assert judge("RAY043", way(gcs=gcs(nodes), wanted=wanted)).status == status


def test_workers_that_are_dropped_are_told_from_one_that_may_have_ended() -> None:
    found = judge("RAY065", workers("filtered"))
    assert found.found == "worker ports of node-6 (10.0.0.6) (10003, 10002 filtered), though the raylet there answers"
    assert judge("RAY065", workers("refused")).status == "fail"
    nodes = (node(), node(WORKER, worker_ports=(10003,)))
    refused = contact(WORKER, 10003, "worker", "refused", "Connection refused")
    one = way(gcs=gcs(nodes), node_ports=known((*ports_of(nodes), refused)))
    assert judge("RAY065", one).status == "info"
    whole = way(gcs=gcs(nodes), node_ports=known((*ports_of(nodes, raylet="filtered"), refused)))
    assert judge("RAY065", whole).status == "info"
    assert judge("RAY041", workers("filtered")).status == "pass", "its own services answer"


def test_fixes_are_those_of_the_fault() -> None:
    silent = judge("RAY035", way(speaker=known(Speaker(kind="silent"))))
    assert silent.params["silent_port"] == "6379"
    assert "silent_port" not in judge("RAY035", CASES["RAY035"][0]).params
    plain = CASES["RAY033"][0]
    assert "grpc_switch" not in judge("RAY033", plain).params, "a switch that is not on need not be turned off"
    told = {"http_proxy": "http://proxy:3128", "RAY_grpc_enable_http_proxy": "1"}
    assert "grpc_switch" in judge("RAY033", way(told, grpc_proxies={"http_proxy": HEAD})).params
