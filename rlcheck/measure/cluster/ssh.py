"""Agents on other machines through the user's own ssh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from rlcheck.measure.cluster.hosts import Host
from rlcheck.measure.cluster.link import Link, start
from rlcheck.measure.cluster.program import ONE_LINER, agent_line
from rlcheck.measure.cluster.switchboard import Seat, Switchboard, unique_names

_LOGIN_S = 10.0
"""For the login and the start of Python, after the time that ssh has to connect."""
_MORE_S, _MOST_MORE_S = 0.3, 25.0
"""And for each host: many logins at once are work for this machine, and for a jump host or file system they share."""
_SSH_FAILED, _NOT_FOUND = 255, 127
_WORDS = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is another than the known one"),
    (r"Host key verification failed|No .* host key is known", "its host key is not known: connect once by hand"),
    (
        r"Permission denied|Too many authentication failures",
        "it does not accept our key (no password is asked for)",
    ),
    (r"Connection refused", "nothing listens on its ssh port"),
    (r"timed out|Timeout", "no answer from its ssh port"),
    (r"Could not resolve hostname", "its name cannot be resolved"),
    (r"No route to host|Network is unreachable", "there is no way to it"),
    (r"kex_exchange_identification|Connection closed by|Connection reset", "its sshd hung up"),
)
"""What OpenSSH's messages mean, the first that matches; its own last line is always shown with it."""


def open_ssh(
    hosts: Sequence[Host],
    connect_timeout_s: float = 10.0,
    ssh: Sequence[str] = ("ssh",),
    python: str = "python3",
    lifetime_s: float = 3600.0,
) -> Switchboard:
    """An agent on each host, all at once.

    Nothing is asked of anybody: a host that wants a password, or whose key is not known, is lost, with ssh's own
    words. Keys, aliases, jump hosts and StrictHostKeyChecking are those of the user's ssh configuration.

    Args:
        hosts: the machines.
        connect_timeout_s: how long a host has to answer; 10 s more to log in, and longer the more hosts there are.
        ssh: the command, with options of its own, if need be.
        python: the interpreter there, as words of a shell.
    """
    seats = _seats(hosts)
    first = agent_line(shlex.split(python), reached_by="ssh", lifetime_s=lifetime_s)
    links: list[Link] = []
    lost: dict[int, str] = {}
    for index, host in enumerate(hosts):
        try:
            link = start(_command(host, connect_timeout_s, ssh, python), (index,))
        except OSError as error:
            lost[index] = f"{ssh[0]}: {error.strerror or error}"
            continue
        link.send_raw(first)
        links.append(link)
    up_within_s = connect_timeout_s + _LOGIN_S + min(_MOST_MORE_S, _MORE_S * len(hosts))
    return Switchboard(seats, links, lost, up_within_s, "ssh to log in", explain)


def _command(host: Host, connect_timeout_s: float, ssh: Sequence[str], python: str) -> list[str]:
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(max(1, round(connect_timeout_s))),
        "ConnectionAttempts": "1",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "ControlMaster": "no",  # a connection that is there already is used; none is left behind
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        "LogLevel": "ERROR",
    }
    words = [*ssh, "-T", *(f"-o{name}={value}" for name, value in options.items())]
    if host.port:
        words += ["-p", str(host.port)]
    return [*words, "--", host.target, f"{python} -u -c {shlex.quote(ONE_LINER)}"]


def _seats(hosts: Sequence[Host]) -> list[Seat]:
    """Seats with unique names: the host, and what else tells two of one name apart."""
    return [
        Seat(name=name) for name in unique_names([(host.name, f"port {host.port or 22}", host.user) for host in hosts])
    ]


def explain(seat: Seat, code: int | None, lines: tuple[str, ...]) -> str:
    """Why the agent on a host ended, or never came to be, in the words of ssh or of the shell there."""
    text, last = "\n".join(lines), lines[-1] if lines else ""
    if code == _SSH_FAILED:
        meaning = next((words for pattern, words in _WORDS if re.search(pattern, text)), "ssh failed")
        return f"{meaning} (ssh: {last.removeprefix('ssh: ')})" if last else meaning
    if code == _NOT_FOUND or re.search(r"(command|Command) not found|: not found", text):
        return f"there is no such Python there ({last})" if last else "there is no such Python there"
    how = "" if code is None else f"exit status {code}" if code >= 0 else f"ssh was ended by signal {-code}"
    return "its agent ended: " + (last or how or "it hung up")
