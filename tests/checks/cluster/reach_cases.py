"""For every check on the way to a head: facts on which it fires, and facts on which it stays quiet."""

from typing import Any

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.ray import RayFacts
from rlcheck.facts.reach import (
    Contact,
    GcsFacts,
    GcsNode,
    PendingGroup,
    PortOwner,
    ReachFacts,
    Resolution,
    Route,
    Speaker,
    WantedRun,
)

HEAD, WORKER = "10.0.0.5", "10.0.0.6"
GCS_SERVER = PortOwner(address="::", pid=10, process="gcs_server", user="bob")


def node(address: str = HEAD, **changes: Any) -> GcsNode:
    usual: dict[str, Any] = {
        "node_id": address.replace(".", ""),
        "address": address,
        "hostname": f"node-{address.rpartition('.')[2]}",
        "is_head": address == HEAD,
        "node_manager_port": 40001,
        "object_manager_port": 40002,
        "agent_port": 52365,
        "resources": {"CPU": 64.0, "GPU": 8.0},
        "available": {"CPU": 64.0, "GPU": 8.0},
    }
    return GcsNode(**{**usual, **changes})


NODES = (node(), node(WORKER))


def contact(
    address: str = HEAD, port: int = 6379, what: str = "gcs", outcome: str = "open", detail: str = ""
) -> Contact:
    return Contact(
        address=address, port=port, what=what, outcome=outcome, detail=detail, rtt_s=2e-4 if outcome == "open" else -1.0
    )


def ports_of(nodes: tuple[GcsNode, ...], **outcomes: str) -> tuple[Contact, ...]:
    """Connections to every node; `raylet="filtered"` and the like for the last of them."""
    found = []
    for place in nodes:
        for what, port in (("raylet", 40001), ("object_manager", 40002), ("agent", 52365)):
            outcome = outcomes.get(what, "open") if place is nodes[-1] else "open"
            found.append(
                contact(place.address, port, what, outcome, "" if outcome == "open" else "no answer within 2.0 s")
            )
    return tuple(found)


def gcs(
    nodes: tuple[GcsNode, ...] | Fact = NODES, groups: tuple[PendingGroup, ...] = (), **changes: Any
) -> Fact[GcsFacts]:
    usual: dict[str, Any] = {
        "health": "serving",
        "seconds": 0.006,
        "ray_version": known("2.60.0"),
        "python_version": known("3.11.7"),
        "nodes": known(nodes) if isinstance(nodes, tuple) else nodes,
        "pending_groups": known(groups),
    }
    return known(GcsFacts(**{**usual, **changes}))


def way(environ: dict[str, str] | None = None, addresses: tuple[str, ...] = (HEAD,), **changes: Any) -> Facts:
    """A healthy way to a cluster of two nodes, but for `changes`."""
    usual: dict[str, Any] = {
        "head": HEAD,
        "port": 6379,
        "resolution": known(Resolution(name=HEAD, is_literal=True, addresses=(HEAD,))),
        "route": known(Route(destination=HEAD, source="10.0.0.9", interface="eth0")),
        "tcp": known((contact(),)),
        "speaker": known(Speaker(kind="gcs", detail="health ok")),
        "gcs": gcs(),
        "node_ports": known(ports_of(NODES)),
        "own_ray_version": "2.60.0",
        "own_python_version": "3.11.7",
    }
    return Facts(
        environ=known(environ or {}),
        ray=known(RayFacts(uid=1000, addresses=addresses)),
        reach=known(ReachFacts(**{**usual, **changes})),
    )


def closed(outcome: str, detail: str = "", **changes: Any) -> Facts:
    """The port is not open, and nothing behind it is known."""
    nothing = absent("the head's port is not open from here")
    broken = {"speaker": nothing, "gcs": nothing, "node_ports": nothing}
    return way(tcp=known((contact(outcome=outcome, detail=detail),)), **{**broken, **changes})


HERE = {"route": known(Route(destination=HEAD, source=HEAD, interface="lo", is_local=True))}
HEALTHY = way()
LOST = node("10.0.0.7", alive=False, end_age_s=600.0, death_reason="unexpected termination: health check failed")
STOPPED = node("10.0.0.7", alive=False, end_age_s=600.0, death_reason="expected termination: received SIGTERM")
BRIDGED = (node(), node("172.17.0.2"))
TOO_BIG = PendingGroup(
    group_id="ab12", name="actors", state="PENDING", strategy="PACK", bundles=({"GPU": 16.0},), age_s=99.0
)
THREE_WAYS = (
    contact(outcome="refused", detail="Connection refused"),
    contact(WORKER, outcome="filtered", detail="no answer within 2.0 s"),
    contact("10.1.0.1", outcome="unreachable", detail="No route to host"),
)
NO_NAME = Resolution(name="head", addresses=(), error="Name or service not known")
WANTED = WantedRun(nodes=2, gpus_per_node=8)

WORKED_ON = (node(), node(WORKER, worker_ports=(10003, 10002)))


def workers(outcome: str) -> Facts:
    """Two workers on the second node, which answer or do not."""
    detail = "" if outcome == "open" else "no answer within 2.0 s"
    tried = tuple(contact(WORKER, port, "worker", outcome, detail) for port in (10003, 10002))
    return way(gcs=gcs(WORKED_ON), node_ports=known((*ports_of(WORKED_ON), *tried)))


CASES: dict[str, tuple[Facts, Facts]] = {
    "RAY031": (way(head="head", resolution=known(NO_NAME)), HEALTHY),
    "RAY032": (way(route=known(Route(destination=HEAD, error="Network is unreachable"))), HEALTHY),
    "RAY033": (way({"http_proxy": "http://proxy:3128"}, proxies={"http_proxy": HEAD}), HEALTHY),
    "RAY034": (way(tcp=known(THREE_WAYS)), HEALTHY),
    "RAY035": (way(speaker=known(Speaker(kind="redis", detail="+PONG"))), HEALTHY),
    "RAY036": (way(gcs=gcs(health="silent", ray_version=absent("-"), nodes=absent("-"))), HEALTHY),
    "RAY037": (
        way(gcs=gcs(asks_for_token=True, needs_token=True, nodes=absent("-"), ray_version=absent("-"))),
        way({"RAY_AUTH_MODE": "token"}, gcs=gcs(asks_for_token=True, token_sent=True, token_source="RAY_AUTH_TOKEN")),
    ),
    "RAY038": (way(own_ray_version="2.59.0", own_python_version="3.11.2"), HEALTHY),
    "RAY039": (
        way(**HERE, owners=(PortOwner(address="127.0.0.1", pid=10, process="gcs_server", user="bob"),)),
        way(**HERE, owners=(GCS_SERVER,)),
    ),
    "RAY040": (way(gcs=gcs((*NODES, LOST))), way(gcs=gcs((*NODES, STOPPED)))),
    "RAY041": (way(gcs=gcs(BRIDGED), node_ports=known(ports_of(BRIDGED, raylet="filtered"))), HEALTHY),
    "RAY066": (way(loses_large_to=(WORKER,)), HEALTHY),
    "RAY068": (way(gcs=gcs((*NODES, node(WORKER, node_id="again")))), HEALTHY),
    "RAY065": (workers("filtered"), workers("open")),
    "RAY042": (way(gcs=gcs(groups=(TOO_BIG,))), HEALTHY),
    "RAY043": (way(gcs=gcs((node(),)), wanted=WANTED), way(wanted=WANTED)),
    "RAY044": (way(extras=(contact(port=8265, what="dashboard", outcome="refused"),)), HEALTHY),
}

OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "RAY033": (
        way(
            {"http_proxy": "http://proxy:3128", "RAY_grpc_enable_http_proxy": "1"},
            proxies={"http_proxy": HEAD},
            grpc_proxies={"http_proxy": HEAD},
        ),
    ),
    "RAY035": (way(speaker=known(Speaker(kind="silent"))),),
}
"""Further facts on which a check fires, and fills other fixes of its playbook."""
