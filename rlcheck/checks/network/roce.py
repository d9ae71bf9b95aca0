"""RoCE: the GID table and the index that NCCL takes from it; the MTU below it."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.facts.base import value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.interfaces import active_fabric, nccl_setting, network, port_name, several_nodes
from rlcheck.facts.network import Gid, RdmaDevice, RdmaPort


def _roce(facts: Facts) -> list[tuple[RdmaDevice, RdmaPort]]:
    return [(d, p) for d, p in active_fabric(facts) if p.link_layer == "Ethernet" and not p.unreadable]


def _is_link_local(gid: Gid) -> bool:
    return gid.gid.lower().startswith("fe80:")


def _is_ipv4(gid: Gid) -> bool:
    return gid.gid.lower().startswith("0000:0000:0000:0000:0000:ffff:") or gid.gid.lower().startswith("::ffff:")


@check("NET007", "RoCE ports have an address that NCCL can use", needs=("network.rdma",), playbook="roce-gid",
       problem="A RoCE port has no address that NCCL can use")  # fmt: skip
def routable_gid(facts: Facts) -> Verdict:
    """Looks for RoCE ports without a GID of the kind that NCCL picks by itself.

    What it does:
        NCCL walks the GID table and takes an entry that is RoCE v2, of the address family NCCL_IB_ADDR_FAMILY (IPv4
        unless set) and not link-local. The check looks for one on every active RoCE port, as this container sees it. In
        a cloud such a port is often only the fast path of the ordinary network card: without a sign of several nodes
        it is reported there as information.

    Why it matters:
        Without such an entry NCCL ends with entry 0, a link-local RoCE v1 address, and connections between hosts fail
        with `Call to ibv_modify_qp failed`.
    """
    ports = _roce(facts)
    if not ports:
        return skip("no active RoCE port whose GID table can be read")
    want_ipv6 = nccl_setting(facts, "NCCL_IB_ADDR_FAMILY").upper() == "AF_INET6"
    bare = [(d, p) for d, p in ports if not any(_fits(gid, want_ipv6) for gid in p.gids)]
    family = "IPv6" if want_ipv6 else "IPv4"
    if not bare:
        return passed(f"all {len(ports)} active RoCE ports have a RoCE v2 {family} GID")
    if facts.platform.value is not None and facts.platform.value.cloud and not several_nodes(facts):
        names = ", ".join(port_name(d, p) for d, p in bare[:8])
        return info(f"no RoCE v2 {family} GID on {names}: a run over several nodes may need NCCL_IB_HCA or an address")
    return warn(
        f"a RoCE v2 {family} GID on each of {len(ports)} active RoCE ports",
        f"none on {', '.join(port_name(d, p) for d, p in bare[:8])}",
        details=tuple(
            f"{port_name(d, p)}: {len(p.gids)} entries" + "".join(f"; {g.index} {g.type} {g.gid}" for g in p.gids[:4])
            for d, p in bare[:16]
        ),
        evidence=tuple(
            evidence(f"network.rdma.{d.name}", len(p.gids), f"/sys/class/infiniband/{d.name}/ports/{p.number}/gids")
            for d, p in bare[:8]
        ),
        params={"device": bare[0][0].name, "netdev": next(iter(bare[0][0].netdevs), "eth0")},
    )


def _fits(gid: Gid, want_ipv6: bool) -> bool:
    return gid.type == "RoCE v2" and not _is_link_local(gid) and _is_ipv4(gid) != want_ipv6


@check("NET008", "NCCL_IB_GID_INDEX points at a usable address", needs=("network.rdma", "environ"),
       playbook="roce-gid",
       problem="NCCL_IB_GID_INDEX points at no usable address")  # fmt: skip
def fixed_gid_index(facts: Facts) -> Verdict:
    """Follows a fixed NCCL_IB_GID_INDEX into the GID table of every active RoCE port.

    What it does:
        With NCCL_IB_GID_INDEX set, NCCL uses that entry unseen. The check looks at it: empty, link-local, RoCE v1 or
        usable. On InfiniBand the variable is not read at all.

    Why it matters:
        The index of an address differs from host to host and changes with every address that is added, so a value
        copied from elsewhere (often 3) connects to nothing. NCCL has found the entry by itself since 2.21.
    """
    text = nccl_setting(facts, "NCCL_IB_GID_INDEX")
    if not text.isascii() or not text.isdecimal() or len(text) > 6:
        return skip("NCCL_IB_GID_INDEX is not set: NCCL chooses by itself")
    index = int(text)
    if not active_fabric(facts):
        return skip("no active RDMA port")
    ports = _roce(facts)
    if not ports:
        return info(f"NCCL_IB_GID_INDEX={index} has no effect: no active RoCE port, and it is not read on InfiniBand")
    judged = [(port_name(d, p), *_entry(p, index)) for d, p in ports]
    bad = [(name, why, is_fatal) for name, why, is_fatal in judged if why]
    if not bad:
        return passed(
            f"entry {index} is a RoCE v2 address on all {len(ports)} active RoCE ports (other hosts may differ)"
        )
    verdict = fail if all(is_fatal for _, _, is_fatal in bad) and len(bad) == len(ports) else warn
    return verdict(
        f"a routable RoCE v2 address at index {index}, or NCCL_IB_GID_INDEX unset",
        "; ".join(f"{name}: {why}" for name, why, _ in bad[:8]),
        evidence=(evidence("environ.NCCL_IB_GID_INDEX", index, "environment"),),
    )


def _entry(port: RdmaPort, index: int) -> tuple[str, bool]:
    """What is wrong with entry `index`, and whether it makes the first connection fail."""
    gid = next((gid for gid in port.gids if gid.index == index), None)
    if gid is None:
        return ("the entry is empty", True) if index < port.gids_read_to else ("", False)
    if _is_link_local(gid):
        return "a link-local address, which does not leave its own network", False
    return ("", False) if gid.type != "IB/RoCE v1" else ("RoCE v1, which routers do not forward", False)


@check("NET009", "Interfaces below RoCE use jumbo frames", needs=("network.rdma", "network.interfaces"),
       playbook="mtu",
       problem="An interface below RoCE does not use jumbo frames")  # fmt: skip
def roce_mtu(facts: Facts) -> Verdict:
    """Looks at the MTU of the Ethernet interfaces that RoCE ports sit on.

    What it does:
        Reports active RoCE ports whose interface has an MTU below 4200, the least that carries RDMA packets of 4096
        bytes.

    Why it matters:
        The RDMA packet size follows the interface: with an MTU of 1500 it is 1024 bytes, which costs bandwidth, and
        two ends that differ may not connect.
    """
    by_name = {interface.name: interface for interface in value_or(network(facts).interfaces, ())}
    pairs = [(d, by_name[n]) for d, p in _roce(facts) for n in _netdevs(d, p) if n in by_name and by_name[n].mtu > 0]
    if not pairs:
        return skip("no active RoCE port with an interface of its own here")
    small = [(device, interface) for device, interface in pairs if interface.mtu < 4200]
    if not small:
        return passed(f"all {len(pairs)} RoCE interfaces have an MTU of at least {min(i.mtu for _, i in pairs)}")
    if facts.platform.value is not None and facts.platform.value.cloud:
        return info(f"MTU {small[0][1].mtu} on {small[0][1].name} below {small[0][0].name}; the cloud may fix it")
    return warn(
        "an MTU of 4200 or more (usually 9000) below RoCE",
        ", ".join(f"{interface.mtu} on {interface.name} ({device.name})" for device, interface in small[:8]),
        evidence=tuple(
            evidence(f"network.interfaces.{i.name}", i.mtu, f"/sys/class/net/{i.name}/mtu") for _, i in small
        ),
        params={"interface": small[0][1].name, "mtu": "9000"},
    )


def _netdevs(device: RdmaDevice, port: RdmaPort) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(gid.netdev for gid in port.gids if gid.netdev))
    return named or device.netdevs
