"""The headline of a network: interfaces and RDMA ports."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.report.topics.phrases import joined, why


def headline(facts: Facts) -> str:
    """Return interfaces that are up and RDMA ports, in a line."""
    network = facts.network.value
    if network is None:
        return why(facts.network)
    up = [i for i in network.interfaces.value or () if i.up and i.kind != "loopback" and (i.ipv4 or i.ipv6)]
    shown = [f"{i.name} {i.speed_mbps // 1000} Gb/s" if i.speed_mbps >= 1000 else i.name for i in up[:4]]
    devices = network.rdma.value or ()
    active = sum(port.state == "ACTIVE" for device in devices for port in device.ports)
    ports = sum(len(device.ports) for device in devices)
    rdma = f"{active} of {ports} RDMA ports active" if ports else "no RDMA device"
    return joined(*shown, f"{len(up) - 4} more" if len(up) > 4 else "", rdma)
