"""The way to the head of a cluster as a table: one line for each layer, with its mark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlcheck.facts.base import Fact, MissingKind, why_missing
from rlcheck.facts.reach import Contact, GcsFacts, ReachFacts
from rlcheck.finding import Exhibit

_SPEAKERS = {
    "redis": "a Redis server",
    "dashboard": "Ray's dashboard",
    "http": "an HTTP server",
    "grpc": "another gRPC service",
    "tls": "something that speaks TLS",
    "ray-client": "the Ray Client's server",
    "silent": "something that accepts and says nothing",
    "closes": "something that accepts and hangs up",
    "other": "something that is not Ray",
}
_MAX_SHOWN = 4
Row = tuple[str, str, str]


def way(reach: ReachFacts) -> Exhibit:
    """One row for each layer that was looked at, the first that failed explaining the rest."""
    rows = [row for row in _rows(reach) if row[2]]
    return Exhibit(title=f"The way to {_place(reach.head, reach.port)}", rows=tuple(rows))


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _rows(reach: ReachFacts) -> Iterator[Row]:
    yield _name(reach)
    yield _route(reach)
    yield _tcp(reach)
    yield _speaker(reach)
    gcs = reach.gcs.value
    if gcs is None:
        yield _missing("GCS", reach.gcs)
    else:
        yield from _gcs(reach, gcs)
    if reach.node_ports.value is not None:
        yield _ports("ports of the nodes", reach.node_ports.value)
    for contact in reach.extras:
        yield _ports(contact.what, (contact,))
    if reach.proxies:
        caught = ", ".join(f"{name} would catch {address}" for name, address in reach.proxies.items())
        yield "!", "proxies", caught


def _missing(layer: str, fact: Fact[Any]) -> Row:
    reason = why_missing(fact)
    if reason is None or (reason.kind is MissingKind.NOT_COLLECTED and reason.reason == "was not collected"):
        return "–", layer, ""
    return ("–" if reason.kind in (MissingKind.NOT_COLLECTED, MissingKind.ABSENT) else "✗"), layer, reason.reason


def _name(reach: ReachFacts) -> Row:
    found = reach.resolution.value
    if found is None:
        return _missing("name", reach.resolution)
    if found.is_literal:
        return "–", "name", ""
    if not found.addresses:
        return "✗", "name", f"{found.name} means no address"
    return "✓", "name", f"{found.name} is {', '.join(found.addresses[:_MAX_SHOWN])}"


def _route(reach: ReachFacts) -> Row:
    found = reach.route.value
    if found is None:
        return _missing("route", reach.route)
    if found.is_local:
        return "✓", "route", f"{found.destination} is this machine's own address"
    over = f" over {found.interface}" if found.interface else ""
    return "✓", "route", f"to {found.destination} from {found.source or 'an unknown address'}{over}"


def _tcp(reach: ReachFacts) -> Row:
    return _missing("TCP", reach.tcp) if reach.tcp.value is None else _ports("TCP", reach.tcp.value, any_is_enough=True)


def _speaker(reach: ReachFacts) -> Row:
    found = reach.speaker.value
    if found is None:
        return _missing("what speaks", reach.speaker)
    if found.kind == "gcs":
        return "✓", "what speaks", "a GCS, Ray's control service"
    detail = f" ({found.detail})" if found.detail else ""
    return "✗", "what speaks", f"{_SPEAKERS.get(found.kind, found.kind)}{detail}"


def _gcs(reach: ReachFacts, gcs: GcsFacts) -> Iterator[Row]:
    serving = gcs.health == "serving"
    time = f" within {gcs.seconds * 1e3:.0f} ms" if gcs.seconds >= 0 and serving else ""
    token = ", asks for a token" if gcs.needs_token else ", took the token" if gcs.token_sent else ""
    yield ("✓" if serving and not gcs.needs_token else "✗"), "GCS", f"{gcs.health or 'no answer'}{time}{token}"
    theirs = [("Ray", gcs.ray_version.value, reach.own_ray_version),
              ("Python", gcs.python_version.value, reach.own_python_version)]  # fmt: skip
    known = [(title, there, here) for title, there, here in theirs if there]
    if known:
        there = ", ".join(f"{title} {version}" for title, version, _ in known)
        here = ", ".join(f"{title} {mine}" for title, _, mine in known if mine)
        differ = reach.own_ray_version and any(mine and mine != version for _, version, mine in known)
        mark = "✗" if differ else "✓" if reach.own_ray_version else "·"
        yield mark, "versions", there + (f"; here {here}" if differ else "" if here else "; no Ray here")
    nodes = gcs.nodes.value
    if nodes is None:
        yield _missing("nodes", gcs.nodes)
        return
    alive = [node for node in nodes if node.alive]
    dead = f", {len(nodes) - len(alive)} dead" if len(nodes) > len(alive) else ""
    gpus = sum(node.resources.get("GPU", 0.0) for node in alive)
    yield ("✓" if alive else "✗"), "nodes", f"{len(alive)} alive{dead}, {gpus:.0f} GPUs"


def _ports(layer: str, contacts: tuple[Contact, ...], any_is_enough: bool = False) -> Row:
    bad = [contact for contact in contacts if contact.outcome != "open"]
    opened = [contact for contact in contacts if contact.outcome == "open"]
    if not contacts:
        return "–", layer, ""
    if len(contacts) == 1 and opened:
        time = f" after {opened[0].rtt_s * 1e3:.1f} ms" if opened[0].rtt_s >= 0 else ""
        return "✓", layer, f"{_place(opened[0].address, opened[0].port)} open{time}"
    if not bad:
        return "✓", layer, f"{len(opened)} of {len(contacts)} open"
    shown = ", ".join(f"{_place(c.address, c.port)} {c.outcome}" for c in bad[:_MAX_SHOWN])
    more = f" and {len(bad) - _MAX_SHOWN} more" if len(bad) > _MAX_SHOWN else ""
    count = f"{len(opened)} of {len(contacts)} open; " if len(contacts) > 1 else ""
    return ("!" if any_is_enough and opened else "✗"), layer, f"{count}{shown}{more}"
