"""The whole way from this machine to a Ray head, layer by layer, each with a deadline of its own.

A layer that cannot be looked at because the one before it is broken is *absent*, with the reason: only the first broken
layer is a finding. Nothing here needs Ray, nothing outlasts its deadline, and nothing is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.reach import Contact, GcsFacts, GcsNode, ReachFacts, Route, Speaker, WantedRun
from rlcheck.measure.cluster import names, owners, proxies, routes, tcp
from rlcheck.measure.machine.context import ProbeContext

T = TypeVar("T")

NAME_S, TCP_S, SPEAKING_S, GCS_S, LARGE_S = 3.0, 2.0, 2.0, 3.0, 1.5
_SMALL_SEGMENT = 536  # what every IPv4 path carries (RFC 9293, 3.7.1)
DASHBOARD_PORT, CLIENT_PORT = 8265, 10001
_MAX_NODES = 512


@dataclass
class _Clock:
    """What is left of the whole time."""

    end: float

    def share(self, wanted_s: float) -> float:
        """The time that a layer gets: what it wants, or what is left."""
        return max(0.05, min(wanted_s, self.end - time.monotonic()))


def examine(
    ctx: ProbeContext,
    head: str,
    port: int,
    *,
    wanted: WantedRun,
    client: bool,
    dashboard: bool,
    own_ray: str,
    own_python: str,
    deadline_s: float,
) -> ReachFacts:
    """Look at every layer of the way.

    Args:
        ctx: this machine's files and environment.
        head: name or address of the head.
        port: of its GCS.
        wanted: the run that should fit, kept for the checks.
        client: the Ray Client's port (10001) matters, too.
        dashboard: so does the dashboard's (8265).
        own_ray: version of Ray in the examined Python, "" for none.
        own_python: its version.
        deadline_s: for everything together.
    """
    clock = _Clock(time.monotonic() + deadline_s)
    resolution = _guarded(lambda: names.resolve(head, clock.share(NAME_S)))
    addresses = resolution.value.addresses if resolution.value else ()
    extra_ports = [("dashboard", DASHBOARD_PORT)] * dashboard + [("client", CLIENT_PORT)] * client
    route = _after(addresses, "the head's name has no address", lambda: _best_route(addresses))
    is_local = route.value is not None and route.value.is_local
    contacts = _after(addresses, "the head's name has no address",
                      lambda: _connect(addresses, [("gcs", port), *extra_ports], clock))  # fmt: skip
    at_head = tuple(contact for contact in contacts.value or () if contact.what == "gcs")
    speaker, gcs = _behind(ctx, at_head, clock)
    gcs, loses_large_from = _in_small_segments(ctx, at_head, gcs, clock)
    nodes = (gcs.value.nodes.value or ()) if gcs.value else ()
    hosts = tuple(dict.fromkeys([head, *addresses, *(node.address for node in nodes if node.alive)]))
    node_ports = _node_ports(gcs, nodes, clock)
    raylets = [contact for contact in node_ports.value or () if contact.what == "raylet" and contact.outcome == "open"]
    return ReachFacts(
        head=head,
        port=port,
        wanted=wanted,
        resolution=resolution,
        route=route,
        tcp=Fact(missing=contacts.missing) if contacts.value is None else known(at_head),
        speaker=speaker,
        gcs=gcs,
        node_ports=node_ports,
        extras=tuple(contact for contact in contacts.value or () if contact.what != "gcs"),
        proxies=_guarded(lambda: proxies.caught_http(ctx.environ, hosts)).value or {},
        grpc_proxies=_guarded(lambda: proxies.caught_grpc(ctx.environ, hosts)).value or {},
        owners=(_guarded(lambda: owners.owners_of_port(ctx, port)).value or ()) if is_local else (),
        own_ray_version=own_ray,
        own_python_version=own_python,
        loses_large_from=loses_large_from,
        loses_large_to=_guarded(lambda: tcp.lose_large(raylets, clock.share(LARGE_S))).value or (),
    )


def look_at_workers(ctx: ProbeContext, found: ReachFacts, deadline_s: float) -> ReachFacts:
    """`found`, with the processes that run tasks by now: while nothing runs on a cluster, it has none.

    Args:
        ctx: this machine's files and environment.
        found: of `examine`, a while ago.
        deadline_s: for asking, and for connecting to them all.
    """
    from rlcheck.measure.cluster.gcs import ask_workers

    gcs = found.gcs.value
    nodes = gcs.nodes.value if gcs is not None else None
    contact = next((contact for contact in found.tcp.value or () if contact.outcome == "open"), None)
    if gcs is None or nodes is None or contact is None:
        return found
    clock = _Clock(time.monotonic() + deadline_s)
    ports = _guarded(lambda: ask_workers(ctx, contact.address, contact.port, clock.share(GCS_S))).value or {}
    fresh = tuple(msgspec.structs.replace(n, worker_ports=ports.get(n.node_id, n.worker_ports)) for n in nodes)
    targets = [
        tcp.Target(node.address, number, "worker")
        for node, old in zip(fresh, nodes, strict=True)
        for number in node.worker_ports
        if node.alive and number not in old.worker_ports
    ]
    contacts = (*(found.node_ports.value or ()), *tcp.connect_all(targets[:_MAX_NODES], clock.share(TCP_S)))
    return msgspec.structs.replace(
        found, gcs=known(msgspec.structs.replace(gcs, nodes=known(fresh))), node_ports=known(contacts)
    )


def _guarded(look: Callable[[], T]) -> Fact[T]:
    """What `look` finds. A fault of ours is a missing fact, as with every probe, and not the end of the report."""
    try:
        return known(look())
    except Exception as error:
        return missing(MissingKind.ERROR, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


def _after(before: Iterable[object], reason: str, look: Callable[[], T]) -> Fact[T]:
    """What `look` finds, or *absent* when the layer before it found nothing."""
    return _guarded(look) if any(True for _ in before) else absent(reason)


def _best_route(addresses: tuple[str, ...]) -> Route:
    """The first address that there is a way to; the first of all when there is none."""
    found = [routes.route_to(address) for address in addresses]
    return next((route for route in found if not route.error), found[0])


def _connect(addresses: tuple[str, ...], ports: list[tuple[str, int]], clock: _Clock) -> tuple[Contact, ...]:
    targets = [tcp.Target(address, port, what) for what, port in ports for address in addresses]
    return tcp.connect_all(targets, clock.share(TCP_S))


def _behind(ctx: ProbeContext, at_head: tuple[Contact, ...], clock: _Clock) -> tuple[Fact[Speaker], Fact[GcsFacts]]:
    """What is behind the open port, and, when it is the GCS, what that says."""
    from rlcheck.measure.cluster.gcs import ask_gcs
    from rlcheck.measure.cluster.speaks import who_speaks

    contact = next((contact for contact in at_head if contact.outcome == "open"), None)
    if contact is None:
        return absent("the head's port is not open from here"), absent("the head's port is not open from here")
    speaker = _guarded(lambda: who_speaks(contact.address, contact.port, clock.share(SPEAKING_S)))
    if speaker.value is not None and speaker.value.kind != "gcs":
        return speaker, absent("no GCS answers at the head's port")
    return speaker, _guarded(lambda: ask_gcs(ctx, contact.address, contact.port, clock.share(GCS_S)))


def _in_small_segments(
    ctx: ProbeContext, at_head: tuple[Contact, ...], gcs: Fact[GcsFacts], clock: _Clock
) -> tuple[Fact[GcsFacts], tuple[str, ...]]:
    """Ask again in small packets when small answers came and the list of nodes did not; whose large ones are lost."""
    from rlcheck.measure.cluster.gcs import ask_gcs

    found = gcs.value
    late = found.nodes.missing if found is not None else None
    if found is None or not found.ray_version.value or late is None or late.kind is not MissingKind.TIMEOUT:
        return gcs, ()
    contact = next(contact for contact in at_head if contact.outcome == "open")
    again = _guarded(lambda: ask_gcs(ctx, contact.address, contact.port, clock.share(GCS_S), _SMALL_SEGMENT))
    return (again, (contact.address,)) if again.value is not None and again.value.nodes.value else (gcs, ())


def _node_ports(gcs: Fact[GcsFacts], nodes: tuple[GcsNode, ...], clock: _Clock) -> Fact[tuple[Contact, ...]]:
    """Connections to what every living node advertises: its raylet, object manager, agent, and some of its workers."""
    if not nodes:
        return absent("the GCS named no nodes" if gcs.value is not None else "no GCS answers at the head's port")
    targets = [
        tcp.Target(node.address, number, what)
        for node in [node for node in nodes if node.alive][:_MAX_NODES]
        for what, number in (
            ("raylet", node.node_manager_port),
            ("object_manager", node.object_manager_port),
            ("agent", node.agent_port),
            *(("worker", number) for number in node.worker_ports),
        )
        if number
    ]
    return _guarded(lambda: tcp.connect_all(targets, clock.share(TCP_S)))
