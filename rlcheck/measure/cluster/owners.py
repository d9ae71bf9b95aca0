"""Which process of this machine listens on a port."""

from __future__ import annotations

import ipaddress
import os

from rlcheck.facts.ray import Listener
from rlcheck.facts.reach import PortOwner
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.ray_processes import listening_ports, owners_of

_MAX_OWNERS = 8


def owners_of_port(ctx: ProbeContext, port: int) -> tuple[PortOwner, ...]:
    """The listeners on a TCP port of this network namespace, as far as they can be seen."""
    listening = [entry for entry in listening_ports(ctx).value or () if entry.port == port]
    return tuple(_owner(ctx, listener) for listener in owners_of(ctx, listening[:_MAX_OWNERS], ()))


def _owner(ctx: ProbeContext, listener: Listener) -> PortOwner:
    return PortOwner(
        address=_plain(listener.address),
        pid=listener.pid,
        process=listener.process,
        program=_program(ctx, listener.pid),
        user=_user(listener.owner_uid),
    )


def _plain(address: str) -> str:
    """An IPv4 address as such, where a socket for both kinds has it mapped (::ffff:127.0.0.1)."""
    mapped = getattr(ipaddress.ip_address(address), "ipv4_mapped", None)
    return str(mapped or address)


def _program(ctx: ProbeContext, pid: int) -> str:
    """What an interpreter runs. No other words of a command line are read: they may hold a password."""
    words = (ctx.read_text(f"/proc/{pid}/cmdline", 4096).value or "").split("\0") if pid else []
    if len(words) > 2 and words[1] == "-m":
        return f"-m {words[2]}"[:80]
    return os.path.basename(words[1])[:80] if len(words) > 1 and words[1].endswith((".py", ".sh", ".js")) else ""


def _user(uid: int) -> str:
    """The name of a user, or uid and number where nobody knows the name; "" for no user."""
    import pwd

    if uid < 0:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"
