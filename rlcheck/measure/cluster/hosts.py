"""Which machines: a host file, or the nodes of this Slurm job."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlcheck.facts.base import why_missing
from rlcheck.measure.machine.process import run_command

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@$-]*")
_SCONTROL_S = 10.0


class HostsError(Exception):
    """A host file or a Slurm job that names no hosts. The message is one line, to be put behind the option's name."""


@dataclass(frozen=True)
class Host:
    """A machine as the user wrote it. `port` and `slots` are 0 when not given; `name` may be an alias of ssh's."""

    name: str
    user: str = ""
    port: int = 0
    slots: int = 0

    @property
    def target(self) -> str:
        """What ssh is told to connect to."""
        return f"{self.user}@{self.name}" if self.user else self.name


def read_hosts(path: Path) -> tuple[Host, ...]:
    """The hosts of a file.

    Raises:
        HostsError: it cannot be read, a line cannot be understood, or it names nobody.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise HostsError(str(reason)) from None
    return parse_hosts(text)


def parse_hosts(text: str) -> tuple[Host, ...]:
    """The hosts in the text of a host file.

    One `[user@]host[:port] [slots=N]` a line, as for Open MPI and DeepSpeed (other `key=value` words are passed
    over); `#` begins a comment; an IPv6 address with a port is in brackets. A host that is named again adds its
    slots.

    Raises:
        HostsError: a line cannot be understood, or there is none.
    """
    found: dict[tuple[str, str, int], Host] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host = _host(words, f"line {number}")
        key = (host.user, host.name, host.port)
        found[key] = replace(host, slots=host.slots + found[key].slots) if key in found else host
    if not found:
        raise HostsError("names no host; write one `[user@]host[:port]` a line")
    return tuple(found.values())


def _host(words: list[str], where: str) -> Host:
    user, _, rest = words[0].rpartition("@")
    host, port = _split_port(rest)
    if not _NAME.fullmatch(host) or (user and not _USER.fullmatch(user)) or port > 65535:
        raise HostsError(f"{where}: {words[0]!r} is no host; write `[user@]host[:port] [slots=N]`")
    settings = [word.partition("=") for word in words[1:]]
    strangers = [key for key, equals, _ in settings if not equals]
    if strangers:
        raise HostsError(f"{where}: {strangers[0]!r} after the host means nothing; write `host slots=N`")
    slots = next((value for key, _, value in settings if key == "slots"), "0")
    if not slots.isdecimal():
        raise HostsError(f"{where}: slots={slots} is no number")
    return Host(name=host, user=user, port=port, slots=int(slots))


def _split_port(text: str) -> tuple[str, int]:
    """Host and port (0: none). An IPv6 address without brackets has no port."""
    match = re.fullmatch(r"\[([^\]]+)\](?::(\d{1,5}))?", text) or re.fullmatch(r"([^:]+):(\d{1,5})", text)
    if match is None:
        return text, 0
    return match[1], int(match[2] or 0)


def slurm_hosts(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The nodes of the Slurm job that this process runs in.

    Raises:
        HostsError: it runs in none, or Slurm does not say.
    """
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not nodes:
        raise HostsError("this is no Slurm job (SLURM_JOB_NODELIST is not set); run it inside salloc")
    if "[" not in nodes:
        return tuple(filter(None, nodes.split(",")))
    command = ["/usr/bin/env", "scontrol", "show", "hostnames", nodes]
    fact = run_command(command, environ, _SCONTROL_S)
    reason = why_missing(fact)
    if reason is not None or fact.value is None:
        raise HostsError(f"{reason.reason if reason else 'scontrol said nothing'}")
    if fact.value.returncode:
        last = (fact.value.stderr.strip().splitlines() or [f"exit status {fact.value.returncode}"])[-1]
        raise HostsError(f"scontrol show hostnames {nodes}: {last[:200]}")
    return tuple(fact.value.stdout.split())
