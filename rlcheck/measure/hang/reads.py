"""What a thread reads from, in the kernel's words: a socket, a pipe, a child; and who is at its other side."""

from __future__ import annotations

import os
import platform
import re
import struct
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from msgspec.structs import replace

from rlcheck.facts.hang import Peer
from rlcheck.measure.machine.process import run_command
from rlcheck.stacks import read

_CALLS: dict[str, tuple[tuple[int, ...], ...]] = {
    "x86_64": ((0, 19, 45, 47), (7, 271), (61, 247), (232, 281, 441)),
    "aarch64": ((63, 65, 207, 212), (73,), (260, 95), (22, 441)),
}
"""Numbers of system calls by machine: read, readv, recvfrom, recvmsg; poll, ppoll; wait4, waitid; epoll_wait and its
kin."""
_MOST_POLLED = 64
_SS_S = 3.0
_MOST_FILES = 4096
_MOST_ENDS = 256


@dataclass
class Table:
    """Who holds which socket and pipe among PIDS, and which socket is connected with which."""

    pids: Iterable[int]
    _holders: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    _other: dict[str, str] = field(default_factory=dict[str, str])
    _near: dict[str, str] = field(default_factory=dict[str, str])
    _remote: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        for pid in self.pids:
            with suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd")[:_MOST_FILES]:
                    if (file := _file(pid, name)).startswith(("socket:", "pipe:")):
                        self._holders[file].add(pid)
        self._tcp()
        self._unix()

    def peers(self, pid: int, tid: int) -> tuple[Peer, ...]:
        """Whom the thread waits for in the kernel; none where it waits for no file at all."""
        words = read(f"/proc/{pid}/task/{tid}/syscall").split()
        if len(words) < 3 or not words[0].isdigit():
            return ()
        reads, polls, waits, epolls = _CALLS.get(platform.machine(), ((), (), (), ()))
        call, first, second = int(words[0]), int(words[1], 16), int(words[2], 16)
        if call in reads:
            return self._at(pid, tid, first)
        if call in polls and second == 1:  # a read with a deadline; of more files it is a server that listens
            return self._at(pid, tid, _polled(pid, first))
        if call in epolls:
            info = read(f"/proc/{pid}/fdinfo/{first}")
            polled = re.findall(r"^tfd:\s*(\d+)", info, re.M)[:_MOST_POLLED]
            found = [peer for number in polled for peer in self._at(pid, tid, int(number))]
            return tuple(replace(peer, how="polled") for peer in found)
        if call in waits:
            child = first & 0xFFFFFFFF if call == waits[0] else second
            return (Peer(tid=tid, how="child", pid=child if child < 1 << 31 else 0),)
        return ()

    def ends(self, pid: int) -> tuple[str, ...]:
        """The addresses of its own ends of connections to other machines."""
        mine = [file for file, holders in self._holders.items() if pid in holders and file in self._near]
        near = [self._near[file] for file in mine if _host(self._near[file]) != _host(self._remote[file])]
        return tuple(sorted(near)[:_MOST_ENDS])

    def _at(self, pid: int, tid: int, descriptor: int) -> tuple[Peer, ...]:
        file = _file(pid, str(descriptor))
        how, _, _ = file.partition(":")
        if how == "pipe":
            others = {other for other in self._holders[file] if other != pid and _writes(other, file)}
            return tuple(Peer(tid=tid, how="pipe", pid=other) for other in sorted(others))
        if how != "socket":
            return ()
        address = self._remote.get(file, "")
        others = self._holders.get(self._other.get(file, ""), set[int]()) - {pid}
        if not others and (address or file in self._other):
            return (Peer(tid=tid, how="socket", address=address),)
        return tuple(Peer(tid=tid, how="socket", pid=other, address=address) for other in sorted(others))

    def _tcp(self) -> None:
        ends: dict[tuple[str, str], str] = {}
        for name in ("tcp", "tcp6"):
            for line in _lines(f"/proc/net/{name}"):
                words = line.split()
                # 01: established; 08: the other side has closed, and this one reads what is left.
                if len(words) > 9 and words[3] in ("01", "08") and words[9] != "0":
                    ends[_address(words[1]), _address(words[2])] = f"socket:[{words[9]}]"
        for (near, far), file in ends.items():
            self._near[file], self._remote[file] = near, far
            if (far, near) in ends:
                self._other[file] = ends[far, near]

    def _unix(self) -> None:
        """Only `ss` tells who is at the other side of a Unix socket."""
        if not any(file.startswith("socket:") and file not in self._remote for file in self._holders):
            return
        done = run_command(["ss", "-xnH"], os.environ, _SS_S).value
        for line in (done.stdout if done is not None else "").splitlines():
            numbers = re.findall(r"\s(\d+)\s+\S+\s+(\d+)\s*$", line)
            if numbers and numbers[0][1] != "0":
                self._other[f"socket:[{numbers[0][0]}]"] = f"socket:[{numbers[0][1]}]"


def _lines(path: str) -> list[str]:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read(64 << 20).splitlines()[1:]
    return []


def _file(pid: int, descriptor: str) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    return ""


def _writes(pid: int, file: str) -> bool:
    """Whether the process has an end of the pipe into which it can write."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd")[:_MOST_FILES]:
            if _file(pid, name) == file:
                flags = re.search(r"^flags:\s*(\d+)", read(f"/proc/{pid}/fdinfo/{name}"), re.M)
                if flags is not None and int(flags.group(1), 8) & os.O_ACCMODE:
                    return True
    return False


def _polled(pid: int, address: int) -> int:
    """The descriptor in the one `pollfd` at ADDRESS of the process; -1 where it may not be read."""
    with suppress(OSError, struct.error, ValueError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return struct.unpack("i", memory.read(4))[0]
    return -1


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _address(text: str) -> str:
    """`127.0.0.1:8000` of the kernel's `0100007F:1F40`; an IPv4 address in an IPv6 one is that."""
    host, _, port = text.partition(":")
    with suppress(ValueError, struct.error):
        data = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
        if len(data) == 4:
            return f"{IPv4Address(data)}:{int(port, 16)}"
        six = IPv6Address(data)
        return f"{six.ipv4_mapped or f'[{six}]'}:{int(port, 16)}"
    return text
