"""Ray processes and listening ports, from /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from rlcheck.facts.base import Fact, Struct, known, why_missing
from rlcheck.facts.ray import Listener, RayProcess
from rlcheck.measure.machine.context import ProbeContext

_NAMES = ("raylet", "gcs_server")
_MAX_PROCESSES = 30_000
_MAX_LINKS = 20_000
_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
# Only these words of a command line are read: others may hold a password.
_FLAGS = ("gcs-address", "gcs_server_port", "node-ip-address", "session-name", "session_dir", "session-dir", "temp_dir")


class Port(Struct, frozen=True):
    """A listening TCP port with the inode of its socket."""

    port: int
    address: str
    uid: int
    inode: str


def listening_ports(ctx: ProbeContext) -> Fact[tuple[Port, ...]]:
    """All listening TCP ports of this network namespace."""
    ports: list[Port] = []
    tables = [ctx.read_text(path) for path in ("/proc/net/tcp", "/proc/net/tcp6")]
    if tables[0].value is None:
        return Fact(missing=why_missing(tables[0]))
    for table in tables:
        for line in (table.value or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) >= 10 and fields[3] == _LISTEN and (port := _port(fields)):
                ports.append(port)
    return known(tuple(ports))


def _port(fields: Sequence[str]) -> Port | None:
    address, _, port = fields[1].partition(":")
    try:
        uid = int(fields[7])
        return Port(port=int(port, 16), address=_address(address), uid=uid if uid < 1 << 32 else -1, inode=fields[9])
    except ValueError:
        return None


def _address(hexadecimal: str) -> str:
    """The address of a line: the kernel prints 32-bit words in the byte order of the machine (little-endian here)."""
    from ipaddress import ip_address

    words = [bytes.fromhex(hexadecimal[i : i + 8])[::-1] for i in range(0, len(hexadecimal), 8)]
    return str(ip_address(b"".join(words)))


def ray_processes(ctx: ProbeContext) -> Fact[tuple[RayProcess, ...]]:
    """Every raylet and gcs_server that this process can see."""
    listing = ctx.list_dir("/proc")
    if listing.value is None:
        return Fact(missing=why_missing(listing))
    pids = [name for name in listing.value if name.isdecimal()][:_MAX_PROCESSES]
    uptime_s = _uptime(ctx)
    found: list[RayProcess] = []
    for pid in pids:
        name = (ctx.read_text(f"/proc/{pid}/comm", 64).value or "").strip()
        if name in _NAMES:
            found.append(_process(ctx, pid, name, uptime_s))
    return known(tuple(found))


def _process(ctx: ProbeContext, pid: str, name: str, uptime_s: float) -> RayProcess:
    flags = _flags(ctx.read_text(f"/proc/{pid}/cmdline", 1 << 16).value or "")
    address = flags.get("gcs-address", "")
    if not address and flags.get("gcs_server_port", "0") != "0":  # 0: the kernel chose a port
        address = f"{flags.get('node-ip-address', '')}:{flags['gcs_server_port']}"
    session = flags.get("session-name") or flags.get("session_dir") or flags.get("session-dir") or ""
    return RayProcess(
        pid=int(pid),
        name=name,
        owner_uid=_owner(ctx, pid),
        age_s=_age(ctx, pid, uptime_s),
        gcs_address=address,
        session=session.rstrip("/").rpartition("/")[2],
        temp_dir=flags.get("temp_dir", ""),
    )


def _flags(cmdline: str) -> dict[str, str]:
    flags: dict[str, str] = {}
    for word in cmdline.split("\0"):
        name, equals, value = word.removeprefix("--").partition("=")
        if equals and word.startswith("--") and name in _FLAGS and len(value) <= 500:
            flags.setdefault(name, value)
    return flags


def _owner(ctx: ProbeContext, pid: str) -> int:
    for line in (ctx.read_text(f"/proc/{pid}/status", 4096).value or "").splitlines():
        words = line.split()
        if line.startswith("Uid:") and len(words) > 1 and words[1].isdecimal():
            return int(words[1])
    return -1


def _uptime(ctx: ProbeContext) -> float:
    try:
        return float((ctx.read_text("/proc/uptime", 64).value or "").split()[0])
    except (ValueError, IndexError):
        return -1.0


def _age(ctx: ProbeContext, pid: str, uptime_s: float) -> float:
    fields = (ctx.read_text(f"/proc/{pid}/stat", 4096).value or "").rpartition(")")[2].split()
    if uptime_s < 0 or len(fields) < 20 or not fields[19].isdecimal():
        return -1.0
    return max(0.0, uptime_s - int(fields[19][:18]) / os.sysconf("SC_CLK_TCK"))


def owners_of(ctx: ProbeContext, ports: Sequence[Port], processes: Iterable[RayProcess]) -> tuple[Listener, ...]:
    """Who holds these ports: Ray's own processes are asked first, the others only for what is left."""
    wanted = {port.inode: "" for port in ports if port.inode != "0"}
    ray_pids = [str(process.pid) for process in processes]
    _claim(ctx, ray_pids, wanted)
    if not all(wanted.values()):
        others = [name for name in ctx.list_dir("/proc").value or () if name.isdecimal() and name not in ray_pids]
        _claim(ctx, others[:_MAX_PROCESSES], wanted)
    return tuple(_listener(ctx, port, wanted.get(port.inode, "")) for port in ports)


def _claim(ctx: ProbeContext, pids: Iterable[str], wanted: dict[str, str]) -> None:
    """Write into `wanted` the process of each socket inode that one of `pids` has open."""
    num_links = 0
    for pid in pids:
        for handle in ctx.list_dir(f"/proc/{pid}/fd").value or ():
            num_links += 1
            match = _SOCKET.fullmatch(ctx.read_link(f"/proc/{pid}/fd/{handle}").value or "")
            if match and not wanted.get(match.group(1), "x"):
                wanted[match.group(1)] = pid
        if num_links > _MAX_LINKS or all(wanted.values()):
            return


def _listener(ctx: ProbeContext, port: Port, pid: str) -> Listener:
    name = (ctx.read_text(f"/proc/{pid}/comm", 64).value or "").strip() if pid else ""
    if (
        name
        and name not in _NAMES
        and "/ray/dashboard/" in (ctx.read_text(f"/proc/{pid}/cmdline", 1 << 14).value or "")
    ):
        name = "ray-dashboard"
    return Listener(port=port.port, address=port.address, owner_uid=port.uid, pid=int(pid or 0), process=name)


def local_addresses(ctx: ProbeContext) -> tuple[str, ...]:
    """The IPv4 addresses of this network namespace, from the routing table's local entries."""
    found: dict[str, None] = {}
    last = ""
    for line in (ctx.read_text("/proc/net/fib_trie", 1 << 20).value or "").splitlines():
        word = line.strip()
        if word.startswith("|-- "):
            last = word[4:]
        elif word.startswith("/32 host LOCAL") and last:
            found[last] = None
    return tuple(found)[:256]
