"""What the environment says of the run to come, and small questions that several network checks ask."""

from __future__ import annotations

from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.network import Interface, NetworkFacts, RdmaDevice, RdmaPort

VIRTUAL_KINDS = frozenset({"bridge", "veth", "tun", "wireguard", "virtual"})
_COUNTS = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES", "PET_NNODES", "NNODES")
_SOFTWARE = ("rxe", "siw")


def environ(facts: Facts) -> dict[str, str]:
    """The recorded environment variables; empty when they were not collected."""
    return value_or(facts.environ, {})


def nccl_setting(facts: Facts, name: str) -> str:
    """What NCCL will see of `name`: the environment, else the first of its configuration files that sets it."""
    if name in environ(facts):
        return environ(facts)[name].strip()
    files = facts.nccl.value.conf_files if facts.nccl.value is not None else ()
    return next((s.value.strip() for file in files for s in value_or(file.settings, ()) if s.name == name), "")


def network(facts: Facts) -> NetworkFacts:
    """The network section, which must be there."""
    return need(facts.network)


def several_nodes(facts: Facts) -> str:
    """What shows that a run over several nodes is meant, such as `SLURM_NNODES=4`, or ""."""
    env = environ(facts)
    for name in _COUNTS:
        counts = [_number(part) for part in env.get(name, "").split(":")]
        if max(counts) > 1:
            return f"{name}={env[name]}"
    world, local = _number(env.get("WORLD_SIZE", "")), _number(env.get("LOCAL_WORLD_SIZE", ""))
    if world > local > 0:
        return f"WORLD_SIZE={world} with LOCAL_WORLD_SIZE={local}"
    return ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def active_fabric(facts: Facts) -> list[tuple[RdmaDevice, RdmaPort]]:
    """The active InfiniBand and RoCE ports that NCCL's own transport can use."""
    devices = value_or(network(facts).rdma, ())
    return [(device, port) for device in fabric(devices) for port in device.ports if port.state == "ACTIVE"]


def fabric(devices: tuple[RdmaDevice, ...]) -> list[RdmaDevice]:
    """The devices that speak verbs to NCCL: no EFA (it needs a plug-in) and no software RDMA."""
    return [device for device in devices if device.driver != "efa" and not device.name.startswith(_SOFTWARE)]


def connectable(port: RdmaPort) -> bool:
    """Whether NCCL could connect over the port. A RoCE port without an address is one that the cloud uses itself."""
    if port.link_layer != "Ethernet" or port.unreadable:
        return True
    return any(not gid.gid.lower().startswith("fe80:") for gid in port.gids)


def run_fabric(facts: Facts) -> list[tuple[RdmaDevice, RdmaPort]]:
    """The active ports that a run is likely to use: in a cloud not those of the ordinary network's fast path."""
    is_cloud = facts.platform.value is not None and bool(facts.platform.value.cloud)
    lenient = is_cloud and not several_nodes(facts)
    return [(device, port) for device, port in active_fabric(facts) if not lenient or connectable(port)]


def port_name(device: RdmaDevice, port: RdmaPort) -> str:
    """`mlx5_0:1`, as NCCL and the InfiniBand tools write it."""
    return f"{device.name}:{port.number}"


def usable(interface: Interface) -> bool:
    """Whether the interface is up, its link not known to be down, and has an address."""
    return (
        interface.up and interface.operstate not in ("down", "lowerlayerdown", "notpresent") and has_address(interface)
    )


def has_address(interface: Interface) -> bool:
    """Whether the interface has an IPv4 address or an IPv6 address that is not link-local."""
    return bool(interface.ipv4) or any(not address.startswith("fe80") for address in interface.ipv6)


def is_loopback_address(text: str) -> bool:
    """Whether `text` is an address of 127.0.0.0/8 or ::1, or the name localhost."""
    return text.lower() in ("localhost", "::1") or text.startswith(("127.", "::ffff:127."))


def describe(interface: Interface) -> str:
    """`eth0 (192.0.2.2)` for a reader."""
    return f"{interface.name} ({interface.ipv4 or 'no IPv4 address'})"
