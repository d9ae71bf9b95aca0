"""The way to the head, layer by layer: name, route, proxies, TCP, what answers, the GCS, its token."""

from __future__ import annotations

from collections.abc import Mapping

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.cluster.common import is_on, variable
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.reach import Contact, GcsFacts, PortOwner, ReachFacts, Route

_SLOW_NAME_S = 1.0
# Interfaces that lead to containers and virtual machines of this very machine.
_INNER = ("docker", "br-", "virbr", "cni", "podman", "lxcbr", "lxdbr")
_STRANGERS = {
    "redis": "a Redis server",
    "dashboard": "Ray's dashboard, which is for browsers and `ray job`",
    "ray-client": "the Ray Client's server, which is for ray:// addresses",
    "http": "an HTTP server",
    "grpc": "a gRPC server that is not the GCS (a raylet's or an agent's port?)",
    "silent": "a port that accepts connections and says nothing (a process that hangs or was stopped?)",
    "closes": "a port that accepts connections and hangs up",
    "other": "another service",
}


def reach(facts: Facts) -> ReachFacts:
    """The section."""
    return need(facts.reach)


def place(facts: Facts) -> str:
    """host:port of the head, as given."""
    section = reach(facts)
    host = f"[{section.head}]" if ":" in section.head else section.head
    return f"{host}:{section.port}"


def shown_owner(owner: PortOwner) -> str:
    """A process for a reader: name, what it runs, pid, user."""
    name = " ".join(filter(None, (owner.process, owner.program))) or "a process that cannot be seen"
    known = ", ".join(filter(None, (f"pid {owner.pid}" if owner.pid else "", owner.user)))
    return f"{name} ({known})" if known else name


def _route(facts: Facts) -> Route | None:
    return reach(facts).route.value


@check("RAY031", "The head's name has an address", needs=("reach.resolution",), playbook="ray-head-name",
       problem="The head's name has no usable address")  # fmt: skip
def head_name(facts: Facts) -> Verdict:
    """Looks the name of the head up with this machine's resolver.

    What it does:
        Reports a name without an address, a resolver that does not answer within 3 s, and a name that means this
        machine's own loopback. An address that was given as such is taken as it is.

    Why it matters:
        Ray looks the name up once and then says "Failed to connect to GCS", whatever went wrong. A loopback address
        sends every worker to itself.
    """
    found = need(reach(facts).resolution)
    if found.is_literal:
        return passed(f"{found.name} is an address")
    proof = {
        "evidence": (evidence("reach.resolution", found.error or ", ".join(found.addresses), "getaddrinfo"),),
        "params": {"name": found.name},
    }
    if not found.addresses:
        return fail(f"an address for {found.name}", f"none ({found.error})", **proof)
    if found.addresses[0].startswith("127.") and not found.name.lower().startswith("localhost"):
        return warn(
            f"an address of the network for {found.name}", f"{found.addresses[0]}, this machine's loopback", **proof
        )
    if found.seconds > _SLOW_NAME_S:
        return info(f"{found.name} is {found.addresses[0]}, but the resolver took {found.seconds:.1f} s", **proof)
    return passed(f"{found.name} is {', '.join(found.addresses[:4])}")


@check("RAY032", "There is a route to the head", needs=("reach.route",), playbook="ray-head-name",
       caused_by=("RAY031",),
       problem="There is no usable route to the head")  # fmt: skip
def head_route(facts: Facts) -> Verdict:
    """Asks the kernel which way packets to the head would take.

    What it does:
        Reports an address that there is no route to. When the head does not answer, also one that the routing table
        sends into a bridge for containers or virtual machines of this machine.

    Why it matters:
        Without a route nothing leaves the machine, whatever the firewall allows. A bridge such as docker0 whose network
        overlaps the cluster's swallows packets that were meant for other machines.
    """
    found = need(reach(facts).route)
    way = f"by {found.interface or 'an unknown interface'}{f' and {found.gateway}' if found.gateway else ''}"
    proof = {
        "evidence": (evidence("reach.route", f"{found.source} {way}", "rtnetlink"),),
        "params": {"address": found.destination},
    }
    if found.error:
        return fail(f"a route to {found.destination}", f"none ({found.error})", **proof)
    if found.is_local:
        return passed(f"{found.destination} is this machine")
    is_open = any(contact.outcome == "open" for contact in reach(facts).tcp.value or ())
    if found.interface.startswith(_INNER) and not is_open:
        return warn(
            f"a way to {found.destination} that leaves this machine",
            f"{found.interface}, a bridge for containers or virtual machines",
            **proof,
        )
    return passed(f"from {found.source} {way}")


@check("RAY033", "No proxy is between this machine and the cluster", needs=("reach",), playbook="ray-head-proxy")
def head_proxy(facts: Facts) -> Verdict:
    """Looks which proxy variables would catch calls to the head and to the nodes that it knows.

    What it does:
        Compares http_proxy and all_proxy with no_proxy as Python's HTTP libraries do, for the head and for every node.
        Ray's own calls use no proxy unless RAY_grpc_enable_http_proxy is on; then they are judged as gRPC would. The
        connections of this command itself never use one.

    Why it matters:
        Calls to the dashboard, to `ray job`, to engines and to reward servers go to a proxy that cannot reach the
        cluster, and come back as 403, 502 or a timeout that looks like a broken network.
    """
    section = reach(facts)
    caught = {**section.proxies, **section.grpc_proxies}
    proof = {
        "evidence": tuple(evidence(f"environ.{name}", variable(facts, name) or "set") for name in sorted(caught)),
        "params": {"no_proxy": _no_proxy(facts)},
    }
    if section.grpc_proxies:
        name, address = next(iter(section.grpc_proxies.items()))
        found = f"RAY_grpc_enable_http_proxy, which sends calls to {address} to the proxy in {name}"
        proof["params"] = {"no_proxy": _no_proxy(facts), "grpc_switch": "RAY_grpc_enable_http_proxy"}
        return fail("Ray's own calls to go straight to the other nodes", found, **proof)
    if section.proxies:
        address = next(iter(section.proxies.values()))
        found = f"{' and '.join(section.proxies)} set and {address} not in no_proxy"
        details = (
            "Ray's own calls use no proxy; the dashboard, `ray job`, engines and reward servers are called by HTTP",
        )
        return warn("HTTP calls to the cluster that use no proxy", found, details=details, **proof)
    return passed("no proxy variable catches these addresses")


def _no_proxy(facts: Facts) -> str:
    """A value for no_proxy that spares this cluster, with what is in it already."""
    section = reach(facts)
    given = f"{variable(facts, 'no_proxy') or ''},{variable(facts, 'NO_PROXY') or ''}"
    current = [entry.strip() for entry in given.split(",")]
    addresses = section.resolution.value.addresses if section.resolution.value else ()
    nodes = (section.gcs.value.nodes.value or ()) if section.gcs.value else ()
    wanted = [*current, "localhost", "127.0.0.1", section.head, *addresses, *(n.address for n in nodes if n.alive)]
    return ",".join(dict.fromkeys(filter(None, wanted)))


@check("RAY034", "The head's port is open from here", needs=("reach.tcp",), playbook="ray-gcs-unreachable",
       caused_by=("RAY031", "RAY032"),
       problem="The head's port is not open from here")  # fmt: skip
def head_port(facts: Facts) -> Verdict:
    """Connects to the head's port and tells apart how that fails.

    What it does:
        One TCP connection to each address of the head. Refused: the machine answers, and nothing listens there (or a
        firewall rejects). No answer: packets are dropped on the way, or the machine is off. Unreachable: this machine
        or the network says that there is no way.

    Why it matters:
        Ray says "Failed to connect to GCS" whether a head refuses, stays silent or has another address, and each needs
        another remedy: start the head, open the firewall, or correct the address.
    """
    contacts = need(reach(facts).tcp)
    opened = [contact for contact in contacts if contact.outcome == "open"]
    proof = {"evidence": tuple(evidence("reach.tcp", f"{c.address}: {c.outcome}", c.detail) for c in contacts[:4])}
    if len(opened) < len(contacts) and opened:
        closed = next(contact for contact in contacts if contact.outcome != "open")
        return info(f"open at {opened[0].address}, {closed.outcome} at {closed.address}", **proof)
    if opened:
        return passed(f"{place(facts)} is open, {opened[0].rtt_s * 1e3:.1f} ms away")
    if not contacts:
        return skip("the head has no address")
    first = contacts[0]
    found, params = _closed(facts, first)
    for contact in contacts[1:]:
        params = {**_closed(facts, contact)[1], **params}
    details = [f"{c.address}: {c.outcome} ({c.detail})" for c in contacts[1:]]
    if reach(facts).proxies:
        details.append(
            f"{' and '.join(reach(facts).proxies)}: not used for this connection, so not the reason (RAY033)"
        )
    expected = f"a Ray head that answers on {place(facts)}"
    return fail(expected, found, details=tuple(details), params=params, **proof)


def _closed(facts: Facts, contact: Contact) -> tuple[str, dict[str, str]]:
    """What is wrong with a connection that failed, and the parameters of the fixes for that."""
    port = str(contact.port)
    if contact.outcome == "filtered":
        found = f"{contact.detail}: packets are dropped on the way, or the machine is off"
        return found, {"blocked_port": port, "address": contact.address}
    if contact.outcome != "refused":
        return f"{contact.outcome}: {contact.detail}", {"wrong_address": contact.address}
    route = _route(facts)
    if route is None or not route.is_local:
        found = "connection refused: the machine answers, but nothing listens there (or a firewall rejects)"
        return found, {"listen_port": port}
    owners = reach(facts).owners
    if owners:
        bound = f"{owners[0].address}:{port}"
        return f"connection refused: {shown_owner(owners[0])} listens on {bound} only", {"listen_port": port}
    section = facts.ray.value
    heads = [p for p in (section.processes.value or () if section else ()) if p.name == "gcs_server" and p.gcs_address]
    other = f"; the head that runs here is {heads[0].gcs_address}" if heads else ", and no Ray head runs here"
    return f"connection refused: nothing listens on port {port} of this machine{other}", {"listen_port": port}


@check("RAY035", "The GCS answers at the head's port", needs=("reach.speaker",), playbook="ray-head-stranger",
       caused_by=("RAY034",),
       problem="Something else than the GCS answers at the head's port")  # fmt: skip
def head_speaker(facts: Facts) -> Verdict:
    """Finds out what answers at the port.

    What it does:
        Makes the gRPC health call that Ray's own tools make, and recognises others by how they turn it down: Redis,
        Ray's dashboard, the Ray Client's server, HTTP, TLS, other gRPC services, ports that stay silent or hang up. On
        the head itself it names the process.

    Why it matters:
        An open port proves nothing: with a Redis server or the wrong one of Ray's ports behind it, `ray start` and
        ray.init wait for a timeout and then blame the network.
    """
    found = need(reach(facts).speaker)
    if found.kind == "gcs":
        return passed(f"the GCS answers on {place(facts)}")
    proof = {"evidence": (evidence("reach.speaker", found.kind, found.detail),)}
    held = f", held by {shown_owner(reach(facts).owners[0])}" if reach(facts).owners else ""
    if found.kind == "tls":
        return _tls(facts, held, proof)
    words = _STRANGERS.get(found.kind, found.kind)
    said = f" ({found.detail})" if found.detail and found.kind in ("http", "redis", "other") else ""
    params = {"port": str(reach(facts).port)} if found.kind in ("redis", "http", "other") else {}
    params |= {"silent_port": str(reach(facts).port)} if found.kind == "silent" else {}
    return fail(f"the GCS of a Ray head on {place(facts)}", f"{words}{said}{held}", params=params, **proof)


def _tls(facts: Facts, held: str, proof: Mapping[str, object]) -> Verdict:
    if is_on(variable(facts, "RAY_USE_TLS")):
        return info(
            f"{place(facts)} speaks TLS{held}, as RAY_USE_TLS says; what is behind it was not looked at", **proof
        )
    expected = f"plain gRPC on {place(facts)}, since RAY_USE_TLS is not on here"
    return fail(expected, f"a port that speaks TLS{held}", **proof)


@check("RAY036", "The GCS is serving", needs=("reach.gcs",), playbook="ray-head-gcs", caused_by=("RAY035", "RAY066"))
def head_gcs(facts: Facts) -> Verdict:
    """Asks the GCS how it is and for its list of nodes.

    What it does:
        The gRPC health call must be answered with SERVING, and the list of nodes must come, all within 3 s, with one
        living node at least.

    Why it matters:
        A GCS that is overloaded, that has lost its storage or is shutting down still accepts connections; nodes and
        drivers that meet it stop after a minute with "Failed to connect to GCS".
    """
    found = need(reach(facts).gcs)
    proof = {"evidence": (evidence("reach.gcs.health", found.health, "/grpc.health.v1.Health/Check"),)}
    answers = bool(found.ray_version.value) or found.needs_token
    if found.health == "silent":
        return fail("an answer from the GCS within 3 s", "none: it accepts connections and does not work", **proof)
    if found.health != "serving" and not answers:
        return fail("a GCS that is serving", found.health, **proof)
    if found.nodes.value is None and not found.needs_token:
        reason = found.nodes.missing.reason if found.nodes.missing else "no answer"
        return warn("the list of nodes from the GCS", f"none ({reason})", **proof)
    if found.nodes.value is not None and not any(node.alive for node in found.nodes.value):
        return fail("a living node in the cluster", f"none, and {found.num_dead} dead: no raylet has registered",
                    headline="The cluster has no node", **proof)  # fmt: skip
    return passed(f"it is {found.health} and answered in {found.seconds * 1e3:.0f} ms")


@check("RAY037", "This machine has the head's token", needs=("reach.gcs", "environ"), playbook="ray-auth-token",
       caused_by=("RAY036",),
       problem="The head wants a token that this machine does not send")  # fmt: skip
def head_token(facts: Facts) -> Verdict:
    """Compares what the head asks for with the token of this machine. The token is shown nowhere.

    What it does:
        Calls the GCS without a token; when that is refused in the words of Ray's token authentication, looks for the
        token where Ray does and calls again with it. Then looks whether RAY_AUTH_MODE makes Ray send it from here, too.

    Why it matters:
        Without the right token every call is refused with InvalidAuthToken, and the node does not join. From Ray 2.59
        on a head asks for one without having been told to, when ray.init() has left one in ~/.ray; nodes that join send
        none by themselves, even if they have the same file.
    """
    gcs, mode = need(reach(facts).gcs), (variable(facts, "RAY_AUTH_MODE") or "").lower()
    if not gcs.asks_for_token:
        return passed("the head asks for no token")
    proof = {"evidence": (evidence("reach.gcs.token_source", gcs.token_source or "none", "InvalidAuthToken"),)}
    if gcs.needs_token:
        found = f"another one in {gcs.token_source}" if gcs.token_sent else "no token on this machine"
        return fail(f"the token that the head on {place(facts)} asks for", found, **proof)
    return _sends_token(facts, gcs, mode, proof)


def _sends_token(facts: Facts, gcs: GcsFacts, mode: str, proof: Mapping[str, object]) -> Verdict:
    """Whether Ray on this machine would send the token, which is the right one."""
    route = _route(facts)
    if mode == "token" or not reach(facts).own_ray_version or (route is not None and route.is_local):
        return passed(f"the head takes the token in {gcs.token_source}")
    found = f"RAY_AUTH_MODE={mode}" if mode else "RAY_AUTH_MODE not set"
    return warn(
        "RAY_AUTH_MODE=token here, since the head asks for a token",
        f"{found}: `ray start --address` and ray.init(address) send none, though {gcs.token_source} is right",
        **proof,
    )
