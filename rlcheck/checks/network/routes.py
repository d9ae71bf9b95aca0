"""Which interface and address a program picks by itself: routes, host name, order of interfaces."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.interfaces import (
    VIRTUAL_KINDS,
    describe,
    environ,
    is_loopback_address,
    nccl_setting,
    network,
    run_fabric,
    several_nodes,
    usable,
)
from rlcheck.facts.network import Interface

_LAST_RESORT = ("lo", "docker", "virbr")
_ONE_NODE = "nothing here says that the run uses several nodes"


def automatic_choice(interfaces: tuple[Interface, ...]) -> Interface | None:
    """The interface that NCCL's bootstrap takes: `ib*` first, then any but docker*, lo and virbr*, then those."""
    usable_ones = [interface for interface in interfaces if usable(interface)]
    ranked = sorted(usable_ones, key=lambda i: (_rank(i.name), i.index))
    return ranked[0] if ranked else None


def _rank(name: str) -> int:
    if name.startswith("ib"):
        return 0
    return 1 if not name.startswith(_LAST_RESORT) else {"d": 2, "l": 3, "v": 4}[name[0]]


@check("NET014", "One default route leads out", needs=("network.default_routes",), playbook="default-route",
       problem="Several default routes are preferred alike")  # fmt: skip
def one_default_route(facts: Facts) -> Verdict:
    """Looks for default routes of equal rank over different interfaces.

    What it does:
        Compares the metrics of IPv4 default routes. Several routes are fine as long as one is preferred.

    Why it matters:
        Ray, vLLM and torch find "this host's address" by asking which interface leads out. With two equal default
        routes the answer may differ between nodes or after a restart, and workers advertise an address that the
        others cannot reach.
    """
    routes = [route for route in need(network(facts).default_routes) if route.family == 4]
    if not routes:
        return skip("no IPv4 default route")
    best = min(route.metric for route in routes)
    names = sorted({route.interface for route in routes if route.metric == best})
    if len(names) == 1:
        others = sorted({route.interface for route in routes} - set(names))
        return passed(f"default route over {names[0]}" + (f", then {', '.join(others)}" if others else ""))
    return warn(
        "one preferred default route",
        f"{len(names)} with metric {best}: {', '.join(names[:8])}",
        evidence=(evidence("network.default_routes", names, "/proc/net/route"),),
        params={"interface": names[0]},
    )


@check("NET015", "A run over several nodes has a default route", needs=("network.default_routes",),
       playbook="default-route",
       problem="There is no default route")  # fmt: skip
def default_route_for_several_nodes(facts: Facts) -> Verdict:
    """Asks for a default route when the environment says that several nodes take part.

    What it does:
        Reads the routing tables. Without any sign of several nodes nothing is judged.

    Why it matters:
        Ray and vLLM learn this host's address from the route to an outside address; without a default route they may
        settle on 127.0.0.1 and other nodes cannot join.
    """
    sign = several_nodes(facts)
    if not sign:
        return skip(_ONE_NODE)
    routes = need(network(facts).default_routes)
    if routes:
        return passed(f"default route over {routes[0].interface}")
    return warn(
        f"a default route ({sign})",
        "none",
        evidence=(evidence("network.default_routes", "none", "/proc/net/route"),),
    )


@check("NET016", "Automatic choice takes an interface that leads to other nodes", needs=("network.interfaces",),
       playbook="socket-ifname",
       problem="Automatic choice takes an interface that leads to no other node")  # fmt: skip
def automatic_interface(facts: Facts) -> Verdict:
    """Finds out which interface NCCL would take unasked, and whether it is a bridge, a VPN or the loopback.

    What it does:
        Repeats NCCL's order: names beginning with `ib`, then everything but docker*, lo and virbr*, by index. A bridge
        that carries the default route is the machine's own network, and so is a container's veth. The default route,
        which Ray and vLLM follow, may not lead into a VPN. NCCL_SOCKET_IFNAME ends the question for NCCL.

    Why it matters:
        A container bridge or a VPN has an address that other nodes cannot reach, often the same on every node
        (172.17.0.1), so the run hangs in the first connection.
    """
    interfaces = need(network(facts).interfaces)
    better = [i for i in interfaces if usable(i) and i.kind not in VIRTUAL_KINDS and i.kind != "loopback"]
    wrong: list[str] = []
    choice = automatic_choice(interfaces)
    routes = value_or(network(facts).default_routes, ())
    usual = routes[0].interface if routes else ""
    is_side = choice is not None and choice.kind in VIRTUAL_KINDS - {"veth"} and choice.name != usual
    if choice and is_side and not nccl_setting(facts, "NCCL_SOCKET_IFNAME"):
        wrong.append(f"NCCL takes {describe(choice)}, a {choice.kind} interface")
    by_name = {interface.name: interface for interface in interfaces}
    out = by_name.get(routes[0].interface) if routes else None
    if out and out.kind in ("tun", "wireguard"):
        wrong.append(f"the default route leads over {describe(out)}, a {out.kind} interface")
    if not wrong:
        return passed(f"NCCL takes {describe(choice)}") if choice else skip("no interface with an address")
    if not better:
        return skip(
            f"only virtual interfaces here ({choice.name if choice else 'none'}): there is nothing else to take"
        )
    sign = several_nodes(facts) or ("RDMA cards" if run_fabric(facts) else "")
    text = f"{'; '.join(wrong)}; better: {', '.join(describe(i) for i in better[:4])}"
    if not sign:
        return info(f"for a run over several nodes: {text}", params={"interface": better[0].name})
    return warn(
        f"a physical interface to be chosen first ({sign})",
        text,
        evidence=(evidence("network.interfaces", choice.name if choice else "", "/sys/class/net"),),
        params={"interface": better[0].name},
    )


@check("NET017", "There is a network beyond the loopback", needs=("network.interfaces",), playbook="default-route",
       problem="There is no network beyond the loopback")  # fmt: skip
def beyond_loopback(facts: Facts) -> Verdict:
    """Looks for any interface besides the loopback that is up and has an address.

    What it does:
        Counts such interfaces.

    Why it matters:
        A machine or container with nothing but 127.0.0.1 can run on its own GPUs, but no other node can join it and no
        model can be downloaded.
    """
    found = [i for i in need(network(facts).interfaces) if i.kind != "loopback" and usable(i)]
    if found:
        return passed(", ".join(describe(interface) for interface in found[:8]))
    sign = several_nodes(facts)
    if sign:
        return fail(
            f"an interface that reaches other nodes ({sign})",
            "only the loopback",
            evidence=(evidence("network.interfaces", "loopback only", "/sys/class/net"),),
        )
    return info("only the loopback interface has an address: one machine, no downloads")


@check("NET018", "The host's own name is not a loopback address", needs=("network",), playbook="hostname-loopback",
       problem="The host's own name is a loopback address")  # fmt: skip
def hostname_is_not_loopback(facts: Facts) -> Verdict:
    """Looks up this host's name in /etc/hosts, where Gloo finds the address that it binds.

    What it does:
        Reads the lines of /etc/hosts that hold the host's name. No name server is asked. Without a sign of several
        nodes, or with GLOO_SOCKET_IFNAME set, nothing is judged.

    Why it matters:
        Gloo advertises the address that the host's own name resolves to: with 127.0.1.1 there (Debian's default) every
        other node connects to itself and fails with "Gloo connectFullMesh failed".
    """
    facts_net = network(facts)
    loopback = [address for address in facts_net.hosts_addresses if is_loopback_address(address)]
    if not loopback:
        known_as = ", ".join(facts_net.hosts_addresses) or "not listed"
        return passed(f"{facts_net.hostname or 'this host'} in /etc/hosts: {known_as}")
    if environ(facts).get("GLOO_SOCKET_IFNAME", "").strip():
        return passed(f"{facts_net.hostname} is {loopback[0]}, but GLOO_SOCKET_IFNAME names the interface")
    sign = several_nodes(facts)
    if not sign:
        return skip(f"{_ONE_NODE}; {facts_net.hostname} is {loopback[0]} in /etc/hosts, which would matter then")
    usable_ones = [i for i in value_or(facts_net.interfaces, ()) if usable(i) and i.kind != "loopback"]
    return warn(
        f"{facts_net.hostname} to be an address that other nodes reach ({sign})",
        f"{', '.join(loopback[:4])} in /etc/hosts",
        evidence=(evidence("network.hosts_addresses", ", ".join(loopback[:4]), "/etc/hosts"),),
        params={"interface": usable_ones[0].name if usable_ones else "eth0", "hostname": facts_net.hostname},
    )


@check("NET019", "MASTER_ADDR can be reached by other nodes", needs=("environ",), playbook="master-addr")
def master_address(facts: Facts) -> Verdict:
    """Judges MASTER_ADDR when several nodes take part.

    What it does:
        A loopback address is an error then; an address of Docker's default bridge (172.17.*) is suspicious. Names are
        not resolved.

    Why it matters:
        Every node takes 127.0.0.1 for itself, so the ranks of the other nodes wait for a server that does not exist
        until the rendezvous times out.
    """
    address = (environ(facts).get("MASTER_ADDR", "") or environ(facts).get("PET_MASTER_ADDR", "")).strip()
    sign = several_nodes(facts)
    if not address or not sign:
        return skip("MASTER_ADDR is not set" if not address else _ONE_NODE)
    where = (evidence("environ.MASTER_ADDR", address, "environment"),)
    if is_loopback_address(address):
        return fail(f"an address that other nodes reach ({sign})", f"MASTER_ADDR={address}", evidence=where)
    if address.startswith("172.17."):
        return warn("an address that other nodes reach", f"{address}, of Docker's default bridge", evidence=where)
    return passed(f"MASTER_ADDR={address}")
