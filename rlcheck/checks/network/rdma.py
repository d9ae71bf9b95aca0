"""RDMA devices: links, subnet manager, speed, kinds, and the device nodes that user space needs."""

from __future__ import annotations

from collections.abc import Iterable

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.interfaces import active_fabric, fabric, nccl_setting, network, port_name, run_fabric
from rlcheck.facts.network import RdmaDevice, RdmaPort

_SYSFS = "/sys/class/infiniband"


def _ports(facts: Facts) -> list[tuple[RdmaDevice, RdmaPort]]:
    return [(device, port) for device in fabric(need(network(facts).rdma)) for port in device.ports]


def _insists_on_rdma(facts: Facts) -> bool:
    return nccl_setting(facts, "NCCL_NET").lower() == "ib"


def _lines(ports: Iterable[tuple[RdmaDevice, RdmaPort]]) -> tuple[str, ...]:
    return tuple(
        f"{port_name(device, port)}: state {port.state or '?'}, link {port.phys_state or '?'}, "
        f"{port.link_layer or 'unknown link layer'}"
        for device, port in ports
    )


@check("NET001", "Some RDMA port carries traffic", needs=("network.rdma",), playbook="rdma-link-down",
       caused_by=("NET002", "NET003"),
       problem="No RDMA port carries traffic")  # fmt: skip
def any_port_active(facts: Facts) -> Verdict:
    """Says when this machine has RDMA cards but none of their ports is active.

    What it does:
        Counts the ports in state ACTIVE over all InfiniBand and RoCE devices, EFA and software RDMA left aside.

    Why it matters:
        Without an active port NCCL falls back to TCP, and a step between nodes takes many times as long. With
        NCCL_NET=IB it does not start at all.
    """
    ports = _ports(facts)
    readable = [(device, port) for device, port in ports if port.state]
    if not readable:
        return skip("no InfiniBand or RoCE port whose state can be read")
    active = [port_name(device, port) for device, port in readable if port.state == "ACTIVE"]
    if active:
        return passed(f"{len(active)} of {len(readable)} RDMA ports active: {', '.join(active[:16])}")
    verdict = fail if _insists_on_rdma(facts) else warn
    return verdict(
        "at least one RDMA port in state ACTIVE",
        f"none of {len(readable)}",
        details=_lines(readable[:32]),
        evidence=(evidence("network.rdma", f"{len(readable)} ports, 0 active", _SYSFS),),
        params={"device": readable[0][0].name},
    )


@check("NET002", "InfiniBand ports have a subnet manager", needs=("network.rdma",), playbook="no-subnet-manager",
       problem="An InfiniBand port has no subnet manager")  # fmt: skip
def subnet_manager(facts: Facts) -> Verdict:
    """Looks for InfiniBand ports whose cable is up but which no subnet manager has configured.

    What it does:
        A port with link layer InfiniBand, physical state LinkUp, logical state INIT and subnet-manager LID 0 waits
        for a subnet manager (opensm, or the one in a managed switch).

    Why it matters:
        Such a port carries no data, however good the cable is: it gets no address until a subnet manager runs. NCCL
        leaves it out, so the run is slower, or goes over TCP.
    """
    ports = [(d, p) for d, p in _ports(facts) if p.link_layer == "InfiniBand"]
    if not ports:
        return skip("no InfiniBand port")
    waiting = [(d, p) for d, p in ports if p.state == "INIT" and p.phys_state == "LinkUp" and p.sm_lid == 0]
    if not waiting:
        return passed(f"none of {len(ports)} InfiniBand ports waits for a subnet manager")
    nothing_active = not any(p.state == "ACTIVE" for _, p in ports)
    verdict = fail if nothing_active and _insists_on_rdma(facts) else warn
    return verdict(
        "InfiniBand ports configured by a subnet manager",
        f"{len(waiting)} of {len(ports)} in state INIT with subnet-manager LID 0",
        details=_lines(waiting[:32]),
        evidence=tuple(
            evidence(f"network.rdma.{d.name}", "INIT, sm_lid 0", f"{_SYSFS}/{d.name}/ports/{p.number}/sm_lid")
            for d, p in waiting[:8]
        ),
        params={"device": waiting[0][0].name},
    )


@check("NET003", "Every RDMA port has a link", needs=("network.rdma",), playbook="rdma-link-down",
       problem="An RDMA port has no link")  # fmt: skip
def physical_link(facts: Facts) -> Verdict:
    """Finds RDMA ports without a link on machines where the same card elsewhere has one.

    What it does:
        Compares the physical state of first ports of equal cards. A second port without a cable is usual and is not
        reported, also where the kernel shows it as a device of its own; nor is a card make of which no port has a link.

    Why it matters:
        One dead rail slows every collective to the speed of what is left, or stops rail-only fabrics at the first
        connection between different rails.
    """
    ports = [(d, p) for d, p in _ports(facts) if p.phys_state]
    if not ports:
        return skip("no RDMA port whose physical state can be read")
    up = {d.model for d, p in ports if p.phys_state == "LinkUp"}
    linked = {d.name for d, p in ports if p.phys_state == "LinkUp"}
    down = [(d, p) for d, p in ports if p.number == 1 and p.phys_state != "LinkUp" and d.model in up]
    # mlx5 makes a device of each port: the two of one card are functions .0 and .1 of one address.
    slots = {_slot(d) for d, p in ports if p.phys_state == "LinkUp"} - {""}
    down = [(d, p) for d, p in down if d.name not in linked and _slot(d) not in slots]
    if down:
        return warn(
            "a link on every card of one make",
            f"{len(down)} without: " + ", ".join(f"{port_name(d, p)} {p.phys_state}" for d, p in down[:8]),
            details=_lines(down[:32]),
            evidence=tuple(
                evidence(f"network.rdma.{d.name}", p.phys_state, f"{_SYSFS}/{d.name}/ports/{p.number}/phys_state")
                for d, p in down[:8]
            ),
            params={"device": down[0][0].name},
        )
    unused = [port_name(d, p) for d, p in ports if p.phys_state != "LinkUp"]
    if not up:
        return skip(f"no RDMA port has a link ({', '.join(unused[:8])}): nothing to compare with")
    note = f"; without a cable: {', '.join(unused[:8])}" if unused else ""
    return passed(f"{len(linked)} RDMA devices with a link{note}")


def _slot(device: RdmaDevice) -> str:
    return device.pci.rpartition(".")[0]


@check("NET004", "Equal RDMA cards run at equal speed", needs=("network.rdma",), playbook="rdma-slow-link",
       problem="An RDMA card is slower than others of its make")  # fmt: skip
def equal_rates(facts: Facts) -> Verdict:
    """Compares the negotiated rate of active ports of the same make of card.

    What it does:
        Groups active ports by link layer and card model and reports those below the fastest of their group. Different
        models (a storage card beside compute cards) are never compared.

    Why it matters:
        A collective is as fast as its slowest rail: one 400 Gb/s port that trained at 100 Gb/s, or at one lane of
        four, makes all of them wait.
    """
    groups: dict[tuple[str, str], list[tuple[RdmaDevice, RdmaPort]]] = {}
    for device, port in active_fabric(facts):
        if port.rate_gbps > 0 and device.model:
            groups.setdefault((port.link_layer, device.model), []).append((device, port))
    compared = [group for group in groups.values() if len(group) > 1]
    if not compared:
        return skip("fewer than two active ports of the same make")
    slow = [
        (device, port, best)
        for group in compared
        if (best := max(port.rate_gbps for _, port in group))
        for device, port in group
        if port.rate_gbps < best
    ]
    if not slow:
        rates = sorted({group[0][1].rate_gbps for group in compared})
        return passed(f"equal cards agree on their rate ({', '.join(f'{rate:g} Gb/s' for rate in rates)})")
    device, port, best = slow[0]
    return warn(
        f"{best:g} Gb/s as on the other cards of this make",
        ", ".join(f"{port_name(d, p)} at {p.rate_gbps:g} Gb/s ({p.width})" for d, p, _ in slow[:8]),
        evidence=tuple(
            evidence(f"network.rdma.{d.name}", f"{p.rate_gbps:g} Gb/s", f"{_SYSFS}/{d.name}/ports/{p.number}/rate")
            for d, p, _ in slow[:8]
        ),
        params={"device": device.name, "rate": f"{port.rate_gbps:g}", "best": f"{best:g}"},
    )


@check("NET005", "NCCL uses one kind of RDMA link", needs=("network.rdma",), playbook="rdma-mixed-links",
       problem="InfiniBand and RoCE cards are used side by side")  # fmt: skip
def one_link_layer(facts: Facts) -> Verdict:
    """Looks for InfiniBand and RoCE ports that NCCL would use side by side.

    What it does:
        Lists the link layers of active ports. With both kinds present, NCCL_IB_HCA should name the cards of one.

    Why it matters:
        NCCL cannot connect an InfiniBand port to an Ethernet port: it stops with "Attempted to connect incompatible
        devices". Typical are InfiniBand cards for compute and an Ethernet card of the same maker for storage.
    """
    kinds: dict[str, list[str]] = {}
    for device, port in active_fabric(facts):
        kinds.setdefault(port.link_layer, []).append(device.name)
    if len(kinds) < 2:
        return passed(f"one kind: {next(iter(kinds))}") if kinds else skip("no active RDMA port")
    chosen = nccl_setting(facts, "NCCL_IB_HCA")
    if chosen:
        return info(f"both kinds are active; NCCL_IB_HCA={chosen} decides which NCCL uses")
    compute = kinds.get("InfiniBand", max(kinds.values(), key=len))
    return warn(
        "one kind of link, or NCCL_IB_HCA naming the cards to use",
        " and ".join(f"{kind} ({', '.join(names[:8])})" for kind, names in kinds.items()),
        evidence=(evidence("network.rdma", kinds, f"{_SYSFS}/*/ports/*/link_layer"),),
        params={"hca": "=" + ",".join(dict.fromkeys(compute))},
    )


@check("NET006", "RDMA devices have their device nodes", needs=("network.rdma",), playbook="rdma-device-missing")
def verbs_nodes(facts: Facts) -> Verdict:
    """Checks that the character device of every active RDMA device is there and may be opened.

    What it does:
        /sys shows the cards of the host even inside a container. What a program opens is /dev/infiniband/uverbsN: it
        must exist and be readable and writable here.

    Why it matters:
        Without the device node NCCL reports no RDMA device and silently uses TCP, because /sys alone is not enough.
        With NCCL_NET=IB the run stops.
    """
    devices = list(dict.fromkeys(device for device, _ in run_fabric(facts)))
    if not devices:
        return skip("no active RDMA port")
    closed = [device for device in devices if not device.uverbs_usable]
    if not closed:
        return passed(f"all {len(devices)} active RDMA devices can be opened")
    verdict = fail if len(closed) == len(devices) and _insists_on_rdma(facts) else warn
    return verdict(
        f"{len(devices)} active RDMA devices that can be opened",
        f"{len(devices) - len(closed)}; not {', '.join(device.name for device in closed[:16])}",
        details=tuple(f"{d.name}: /dev/infiniband/{d.uverbs or 'uverbs?'} missing or not permitted" for d in closed),
        evidence=tuple(evidence(f"network.rdma.{d.name}", d.uverbs, "/dev/infiniband") for d in closed[:8]),
        params={"devices": " ".join(f"/dev/infiniband/{device.uverbs}" for device in closed if device.uverbs)},
    )
