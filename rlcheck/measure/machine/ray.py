"""Ray on this machine, from files alone: nothing is imported, asked or connected to."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from rlcheck.facts.base import Fact, Missing, MissingKind, absent, known, missing, why_missing
from rlcheck.facts.ray import AuthToken, Listener, RayFacts, RayProcess, RaySession
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.mount_table import mount_of, read_mounts
from rlcheck.measure.machine.ray_processes import listening_ports, local_addresses, owners_of, ray_processes

_DEFAULT_PORTS = (6379, 8265, 10001)
_NEWEST = 50


def collect(ctx: ProbeContext) -> RayFacts:
    """Sessions in Ray's temporary directory, Ray processes, and who listens on Ray's ports."""
    temp_dir, source = _temp_dir(ctx)
    bound = _bound_sessions(ctx)
    listeners, processes = _running(ctx, bound)
    visible = {process.session for process in processes.value or ()}
    num_sessions, sessions, latest, cluster = _sessions(ctx, temp_dir, bound)
    return RayFacts(
        uid=os.getuid(),
        temp_dir=temp_dir,
        temp_dir_source=source,
        num_sessions=num_sessions,
        sessions=sessions,
        session_latest=latest,
        current_cluster=cluster,
        processes=processes,
        num_unseen_raylets=len(bound - visible),
        listeners=listeners,
        addresses=local_addresses(ctx),
        local_port_range=_port_range(ctx),
        reserved_ports=(ctx.read_text("/proc/sys/net/ipv4/ip_local_reserved_ports", 4096).value or "").strip(),
        somaxconn=_number(ctx, "/proc/sys/net/core/somaxconn"),
        auth_token=_auth_token(ctx),
    )


def _running(
    ctx: ProbeContext, bound: frozenset[str]
) -> tuple[Fact[tuple[Listener, ...]], Fact[tuple[RayProcess, ...]]]:
    """Listeners and processes. The table of processes is read only when a socket or a port shows that Ray may run."""
    ports = listening_ports(ctx)
    sockets_known = ctx.exists("/proc/net/unix")
    usual = {*_DEFAULT_PORTS, _port_of(ctx.environ.get("RAY_ADDRESS", ""))}
    suspicious = bool(bound) or any(port.port in usual for port in ports.value or ())
    if not suspicious and sockets_known and ports.value is not None:
        return known(()), known(())
    processes = ray_processes(ctx)
    wanted = {*usual, *(_port_of(process.gcs_address) for process in processes.value or ())}
    if ports.value is None:
        return Fact(missing=why_missing(ports)), processes
    ours = [port for port in ports.value if port.port in wanted]
    return known(owners_of(ctx, ours, processes.value or ())), processes


def _port_of(address: str) -> int:
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() and len(port) <= 5 else 0


def _temp_dir(ctx: ProbeContext) -> tuple[str, str]:
    """Where `ray.init` puts its sessions, and the variable that decides."""
    for name in ("RAY_TMPDIR", "TMPDIR"):
        if name in ctx.environ:
            value = ctx.environ[name].encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "")
            return os.path.join(value, "ray"), name
    return "/tmp/ray", "default"


def _bound_sessions(ctx: ProbeContext) -> frozenset[str]:
    """Names of the sessions whose raylet socket some process of this network namespace is bound to."""
    sessions: set[str] = set()
    for line in (ctx.read_text("/proc/net/unix").value or "").splitlines():
        path = line.partition("/")[2]
        if "/sockets/raylet" in path:
            sessions.add(path.partition("/sockets/")[0].rpartition("/")[2])
    return frozenset(sessions)


def _sessions(
    ctx: ProbeContext, temp_dir: str, bound: frozenset[str]
) -> tuple[Fact[int], Fact[tuple[RaySession, ...]], str, Fact[str]]:
    """How many sessions there are, the newest of them, what session_latest names, and the address left behind."""
    mounts = read_mounts(ctx).value
    mount = mount_of(mounts, temp_dir) if mounts and temp_dir.startswith("/") else None
    if mount is not None and mount.is_network:
        reason = Missing(kind=MissingKind.UNSUPPORTED, reason=f"{temp_dir} is on {mount.fs_type}, which may not answer")
        unseen: Fact[str] = Fact(missing=reason)
        return (*_not_looked(Fact(missing=reason)), "", unseen)
    listing = ctx.list_dir(temp_dir)
    if listing.value is None:
        gone = why_missing(listing)
        if gone is not None and gone.kind is MissingKind.ABSENT:
            return (*_not_looked(absent(f"there is no {temp_dir}: Ray has not run here")), "", known(""))
        nothing: Fact[str] = Fact(missing=gone)
        return (*_not_looked(Fact(missing=gone)), "", nothing)
    names = [name for name in listing.value if name.startswith("session_") and name != "session_latest"]
    newest = tuple(_session(ctx, temp_dir, name, bound) for name in sorted(names, reverse=True)[:_NEWEST])
    latest = (ctx.read_link(f"{temp_dir}/session_latest").value or "").rstrip("/").rpartition("/")[2]
    return known(len(names)), known(newest), latest, _current_cluster(ctx, temp_dir)


def _not_looked(fact: Fact[int]) -> tuple[Fact[int], Fact[tuple[RaySession, ...]]]:
    return fact, Fact(missing=fact.missing)


def _current_cluster(ctx: ProbeContext, temp_dir: str) -> Fact[str]:
    text = ctx.read_text(f"{temp_dir}/ray_current_cluster", 300)
    if text.value is None:
        gone = why_missing(text)
        return known("") if gone is not None and gone.kind is MissingKind.ABSENT else text
    return known(text.value.strip())


def _session(ctx: ProbeContext, temp_dir: str, name: str, bound: frozenset[str]) -> RaySession:
    directory = f"{temp_dir}/{name}"
    found = _stat(ctx, directory)
    entries = ctx.list_dir(directory).value or []
    spilled = [entry for entry in entries if entry.startswith("ray_spilled_objects")]
    pid = name.rpartition("_")[2]
    return RaySession(
        name=name,
        owner_uid=found.st_uid if found else -1,
        starter_pid=int(pid) if pid.isdecimal() and len(pid) <= 9 else 0,
        age_s=max(0.0, ctx.now() - found.st_mtime) if found else -1.0,
        has_socket=ctx.exists(f"{directory}/sockets/raylet"),
        live=name in bound,
        spilled=sum(bool(ctx.list_dir(f"{directory}/{entry}").value) for entry in spilled[:20]),
    )


def _stat(ctx: ProbeContext, path: str) -> os.stat_result | None:
    try:
        return os.stat(ctx.path(path))
    except (OSError, ValueError):
        return None


def _number(ctx: ProbeContext, path: str) -> Fact[int]:
    text = ctx.read_text(path, 100)
    if text.value is None:
        return Fact(missing=why_missing(text))
    numbers = _numbers(text.value.split())
    return known(numbers[0]) if numbers else missing(MissingKind.ERROR, f"{path}: {text.value[:40]!r} is no number")


def _port_range(ctx: ProbeContext) -> Fact[tuple[int, int]]:
    path = "/proc/sys/net/ipv4/ip_local_port_range"
    text = ctx.read_text(path, 100)
    if text.value is None:
        return Fact(missing=why_missing(text))
    numbers = _numbers(text.value.split())
    if len(numbers) != 2:
        return missing(MissingKind.ERROR, f"{path}: {text.value[:40]!r} is no range")
    return known((numbers[0], numbers[1]))


def _numbers(words: Iterable[str]) -> list[int]:
    return [int(word) for word in words if word.isascii() and word.isdigit() and len(word) <= 18]


def _auth_token(ctx: ProbeContext) -> Fact[AuthToken]:
    """The token file, unless authentication is off. Its directory may be on a file system that does not answer."""
    if ctx.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return absent("RAY_AUTH_MODE is not token")
    source = "RAY_AUTH_TOKEN_PATH" if ctx.environ.get("RAY_AUTH_TOKEN_PATH") else "default"
    path = ctx.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.join(ctx.environ.get("HOME", "/"), ".ray/auth_token")
    path = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    mounts = read_mounts(ctx).value
    mount = mount_of(mounts, path) if mounts else None
    if mount is not None and mount.is_network:
        return missing(MissingKind.UNSUPPORTED, f"{path} is on {mount.fs_type}, which may not answer")
    found = _stat(ctx, path)
    if found is None:
        return known(AuthToken(path=path, source=source))
    readable = stat.S_ISREG(found.st_mode) and ctx.access(path, os.R_OK)
    return known(AuthToken(path=path, source=source, exists=True, readable=readable, num_bytes=found.st_size))
