"""The network as this machine has it: interfaces, routes, the host's own name, and RDMA devices."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct


class Interface(Struct, frozen=True):
    """One network interface.

    `up` is the administrative state, `operstate` the kernel's word for the link (up, down, unknown, …). `kind` is
    ethernet, infiniband, loopback, bridge, veth, tun, vlan, bond, wireguard, wireless or virtual. `speed_mbps` is 0
    when the driver does not say. `ipv4` holds at most the primary address, without its prefix. `pci` is the address of
    the card, "" for a virtual interface; `numa_node` -1 when unknown.
    """

    name: str
    index: int = 0
    up: bool = False
    operstate: str = ""
    kind: str = "virtual"
    mtu: int = 0
    speed_mbps: int = 0
    ipv4: str = ""
    ipv6: tuple[str, ...] = ()
    pci: str = ""
    driver: str = ""
    numa_node: int = -1


class DefaultRoute(Struct, frozen=True):
    """A default route. `family` is 4 or 6; `gateway` is "" for a route straight onto a link."""

    interface: str
    gateway: str = ""
    metric: int = 0
    family: int = 4


class Gid(Struct, frozen=True):
    """An entry of a port's GID table that is not zero. `type` is the kernel's word: IB/RoCE v1 or RoCE v2."""

    index: int
    gid: str
    type: str = ""
    netdev: str = ""


class RdmaPort(Struct, frozen=True):
    """One port of an RDMA device.

    `state` (ACTIVE, INIT, DOWN, …) is the subnet's view, `phys_state` (LinkUp, Polling, Disabled, …) the cable's.
    `rate_gbps` and `width` come from one line such as `400 Gb/sec (4X NDR)`. `lid` and `sm_lid` are 0 on Ethernet.
    `gids_read_to` is the first index of the GID table that was not looked at. `unreadable` names attributes that the
    kernel refused to give.
    """

    number: int
    state: str = ""
    phys_state: str = ""
    link_layer: str = ""
    rate_gbps: float = 0.0
    width: str = ""
    lid: int = 0
    sm_lid: int = 0
    gids: tuple[Gid, ...] = ()
    gids_read_to: int = 0
    unreadable: tuple[str, ...] = ()


class RdmaDevice(Struct, frozen=True):
    """One RDMA device (HCA).

    `driver` is the kernel driver of its PCI function (mlx5_core, efa, irdma, …), "" for software RDMA. `model` is the
    maker's type and board, equal for cards of one make. `uverbs` is the device node that user space needs and
    `uverbs_usable` says whether that node is there and may be opened by this process.
    """

    name: str
    ports: tuple[RdmaPort, ...] = ()
    driver: str = ""
    model: str = ""
    uverbs: str = ""
    uverbs_usable: bool = False
    pci: str = ""
    numa_node: int = -1
    netdevs: tuple[str, ...] = ()


class GpuDirect(Struct, frozen=True):
    """What decides whether a network card can reach the memory of an NVIDIA GPU.

    `module_flavour` is open, proprietary or "" (not said). `kernel` is the release of the running kernel.
    """

    num_gpus: int = 0
    module_flavour: str = ""
    peermem: bool = False
    kernel: str = ""


class NetworkFacts(Struct, frozen=True):
    """The network of one machine.

    `hosts_addresses` are the addresses that /etc/hosts gives to this host's own name, in the file's order; nothing is
    asked of a name server. `rdma` is absent where there is no RDMA device. `acs_bridges` (only `--deep`, as root) are
    the PCI bridges with ACS source validation on.
    """

    hostname: str = ""
    hosts_addresses: tuple[str, ...] = ()
    interfaces: Fact[tuple[Interface, ...]] = Fact()
    default_routes: Fact[tuple[DefaultRoute, ...]] = Fact()
    rdma: Fact[tuple[RdmaDevice, ...]] = Fact()
    gpudirect: Fact[GpuDirect] = Fact()
    acs_bridges: Fact[tuple[str, ...]] = Fact()
