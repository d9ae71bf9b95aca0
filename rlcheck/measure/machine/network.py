"""Collects interfaces, routes, the host's own name, RDMA devices and what GPUDirect RDMA needs. Starts no process."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from pathlib import Path

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing, value_or
from rlcheck.facts.network import DefaultRoute, GpuDirect, Interface, NetworkFacts
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.network_rdma import collect_rdma, read_int, read_word

_NET = "/sys/class/net"
_INTERFACE_LIMIT = 256
_IFF_UP = 0x1
_SIOCGIFADDR = 0x8915
_RTF_UP, _RTF_REJECT = 0x1, 0x200
_KIND_BY_TYPE = {772: "loopback", 32: "infiniband"}
_KIND_BY_ENTRY = {
    "bridge": "bridge",
    "bonding": "bond",
    "tun_flags": "tun",
    "wireless": "wireless",
    "phy80211": "wireless",
}
_KIND_BY_DEVTYPE = {"bridge": "bridge", "vlan": "vlan", "wlan": "wireless", "bond": "bond", "wireguard": "wireguard"}
_KIND_BY_NAME = (("veth", "veth"), ("docker", "bridge"), ("br-", "bridge"), ("virbr", "bridge"), ("cni", "bridge"),
                 ("wg", "wireguard"), ("tun", "tun"), ("tap", "tun"), ("tailscale", "tun"), ("ppp", "tun"),
                 ("utun", "tun"), ("zt", "tun"))  # fmt: skip
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def collect(ctx: ProbeContext) -> NetworkFacts:
    """The network section of the facts."""
    hostname = value_or(ctx.read_text("/proc/sys/kernel/hostname", 256), "").strip()
    return NetworkFacts(
        hostname=hostname,
        hosts_addresses=_hosts_addresses(ctx, hostname),
        interfaces=_interfaces(ctx),
        default_routes=_default_routes(ctx),
        rdma=collect_rdma(ctx),
        gpudirect=_gpudirect(ctx),
        acs_bridges=_acs_bridges(ctx),
    )


def _hosts_addresses(ctx: ProbeContext, hostname: str) -> tuple[str, ...]:
    """What /etc/hosts says of `hostname`, as the resolver would read it: names are compared without case."""
    found: list[str] = []
    for line in value_or(ctx.read_text("/etc/hosts", 1 << 20), "").splitlines():
        words = line.partition("#")[0].split()
        if hostname and hostname.lower() in (word.lower() for word in words[1:]) and words[0] not in found:
            found.append(words[0])
    return tuple(found[:16])


def _interfaces(ctx: ProbeContext) -> Fact[tuple[Interface, ...]]:
    names = ctx.list_dir(_NET)
    if names.value is None:
        return missing(MissingKind.ERROR, f"no list of interfaces: {names.missing.reason if names.missing else ''}")
    ipv6 = _ipv6_addresses(ctx)
    entries = [name for name in names.value if name != "bonding_masters"][:_INTERFACE_LIMIT]
    found = (_interface(ctx, name, ipv6.get(name, ())) for name in entries)
    return known(tuple(sorted(found, key=lambda interface: (interface.index, interface.name))))


def _interface(ctx: ProbeContext, name: str, ipv6: tuple[str, ...]) -> Interface:
    base = f"{_NET}/{name}"
    place = value_or(ctx.read_link(base), "")
    virtual = "/devices/virtual/" in place
    kind = _kind(ctx, base, name, virtual)
    pci = [] if virtual else _PCI.findall(place)
    device = f"{base}/device"
    return Interface(
        name=name,
        index=read_int(ctx, f"{base}/ifindex"),
        up=bool(_flags(ctx, base) & _IFF_UP),
        operstate=read_word(ctx, f"{base}/operstate"),
        kind=kind,
        mtu=read_int(ctx, f"{base}/mtu"),
        speed_mbps=0 if virtual or kind == "loopback" else max(0, read_int(ctx, f"{base}/speed")),
        ipv4=ipv4_of(ctx, name),
        ipv6=ipv6,
        pci=pci[-1] if pci else "",
        driver="" if virtual else os.path.basename(value_or(ctx.read_link(f"{device}/driver"), "")),
        numa_node=-1 if virtual else read_int(ctx, f"{device}/numa_node", -1),
    )


def _flags(ctx: ProbeContext, base: str) -> int:
    try:
        return int(read_word(ctx, f"{base}/flags"), 16)
    except ValueError:
        return 0


def _kind(ctx: ProbeContext, base: str, name: str, virtual: bool) -> str:
    by_type = _KIND_BY_TYPE.get(read_int(ctx, f"{base}/type"))
    if by_type:
        return by_type
    entries = value_or(ctx.list_dir(base), [])
    for entry, kind in _KIND_BY_ENTRY.items():
        if entry in entries:
            return kind
    devtype = re.search(r"^DEVTYPE=(\w+)", value_or(ctx.read_text(f"{base}/uevent", 4096), ""), re.M)
    if devtype and devtype[1] in _KIND_BY_DEVTYPE:
        return _KIND_BY_DEVTYPE[devtype[1]]
    if not virtual:
        return "ethernet"
    return next((kind for prefix, kind in _KIND_BY_NAME if name.startswith(prefix)), "virtual")


def ipv4_of(ctx: ProbeContext, name: str) -> str:
    """The primary IPv4 address of an interface of this very machine; "" for none, and on a made-up root."""
    if ctx.root != Path("/"):
        return ""
    request = struct.pack("256s", name.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            return socket.inet_ntoa(fcntl.ioctl(handle.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError:
        return ""


def _ipv6_addresses(ctx: ProbeContext) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in value_or(ctx.read_text("/proc/net/if_inet6"), "").splitlines():
        words = line.split()
        if len(words) == 6 and re.fullmatch(r"[0-9a-fA-F]{32}", words[0]):
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
            found[words[5]] = (*found.get(words[5], ()), address)
    return found


def _default_routes(ctx: ProbeContext) -> Fact[tuple[DefaultRoute, ...]]:
    table = ctx.read_text("/proc/net/route")
    if table.value is None:
        return missing(MissingKind.ERROR, f"no routing table: {table.missing.reason if table.missing else ''}")
    routes = [route for line in table.value.splitlines()[1:] if (route := _route4(line.split()))]
    lines6 = value_or(ctx.read_text("/proc/net/ipv6_route"), "").splitlines()
    routes += [route for line in lines6 if (route := _route6(line.split()))]
    return known(tuple(sorted(routes, key=lambda route: (route.family, route.metric))))


def _route4(words: list[str]) -> DefaultRoute | None:
    """A line of /proc/net/route, when it is a default route in use. Addresses there are in host byte order."""
    try:
        destination, gateway, flags = (int(word, 16) for word in words[1:4])
        metric, mask = int(words[6]), int(words[7], 16)
    except (ValueError, IndexError):
        return None
    if destination or mask or not flags & _RTF_UP or flags & _RTF_REJECT or gateway >= 1 << 32:
        return None
    address = socket.inet_ntoa(struct.pack("=I", gateway)) if gateway else ""
    return DefaultRoute(interface=words[0], gateway=address, metric=metric)


def _route6(words: list[str]) -> DefaultRoute | None:
    try:
        is_default = int(words[0], 16) == 0 and int(words[1], 16) == 0 and int(words[3], 16) == 0
        metric, flags, gateway = int(words[5], 16), int(words[8], 16), bytes.fromhex(words[4])
    except (ValueError, IndexError):
        return None
    if not is_default or flags & _RTF_REJECT or not flags & _RTF_UP or len(gateway) != 16 or words[9:] == ["lo"]:
        return None
    address = socket.inet_ntop(socket.AF_INET6, gateway) if any(gateway) else ""
    return DefaultRoute(interface=words[-1], gateway=address, metric=metric, family=6)


def _gpudirect(ctx: ProbeContext) -> Fact[GpuDirect]:
    gpus = ctx.list_dir("/proc/driver/nvidia/gpus")
    if not gpus.value:
        return absent("no NVIDIA GPU with a loaded driver on this machine")
    modules = ctx.read_text("/proc/modules")
    if modules.value is None:
        return missing(MissingKind.ERROR, "the list of kernel modules cannot be read")
    version = value_or(ctx.read_text("/proc/driver/nvidia/version", 4096), "")
    flavour = "open" if "Open Kernel Module" in version else "proprietary" if "NVRM version" in version else ""
    return known(
        GpuDirect(
            num_gpus=len(gpus.value),
            module_flavour=flavour,
            peermem=bool(re.search(r"^(nvidia_peermem|nv_peer_mem) ", modules.value, re.M)),
            kernel=value_or(ctx.read_text("/proc/sys/kernel/osrelease", 256), "").strip(),
        )
    )


def _acs_bridges(ctx: ProbeContext) -> Fact[tuple[str, ...]]:
    if not ctx.deep:
        return missing(MissingKind.NOT_COLLECTED, "ACS is looked at with --deep only")
    if os.geteuid() != 0:
        return missing(MissingKind.PERMISSION, "ACS of PCI bridges can be read by root only")
    listing = ctx.run(["lspci", "-vvv"], timeout_s=3.0)
    if listing.value is None:
        return Fact(missing=listing.missing)
    if listing.value.returncode != 0 or "ACSC" not in listing.value.stdout:
        return missing(MissingKind.ERROR, "lspci does not tell the ACS settings of any bridge")
    return known(parse_acs(listing.value.stdout))


def parse_acs(listing: str) -> tuple[str, ...]:
    """The addresses of the devices in the output of `lspci -vvv` whose ACS control validates the source."""
    found: list[str] = []
    device = ""
    for line in listing.splitlines():
        if line[:1].strip():
            device = line.split(" ", 1)[0]
        elif "ACSCtl:" in line and "SrcValid+" in line and device:
            found.append(device)
    return tuple(found)
