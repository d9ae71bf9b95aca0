"""TCP connections, many at once under one deadline, each with the way in which it failed."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import selectors
import socket
import termios
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from rlcheck.facts.reach import Contact

_BATCH = 256
_HTTP2_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_LARGE_BYTES = 9500  # more than one packet, also where packets have 9000 bytes
_IGNORED_FRAME = _LARGE_BYTES.to_bytes(3, "big") + b"\xf0" + bytes(5 + _LARGE_BYTES)
_OUTCOMES: Mapping[int, str] = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "filtered",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETDOWN: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ENOPROTOOPT: "unreachable",
    # This machine's own routes or packet filter refuse to send it.
    errno.EACCES: "unreachable",
    errno.EPERM: "unreachable",
}


@dataclass(frozen=True)
class Target:
    """A port to connect to. `address` is a literal; `what` the port's purpose, as in `Contact`."""

    address: str
    port: int
    what: str


def connect_all(targets: Iterable[Target], timeout_s: float) -> tuple[Contact, ...]:
    """Connect to every target and hang up; the answers in the order of the targets, all within `timeout_s`.

    They go out in batches, so that the limit on open files is not reached; each batch gets its share of the time that
    is left. Nothing is sent over the connections.
    """
    wanted = list(targets)
    end = time.monotonic() + timeout_s
    found: list[Contact] = []
    while wanted:
        batch, wanted = wanted[:_BATCH], wanted[_BATCH:]
        batches_left = 1 + -(-len(wanted) // _BATCH)
        found += _connect_batch(batch, max(0.05, (end - time.monotonic()) / batches_left))
    return tuple(found)


def lose_large(open_ports: Iterable[Contact], timeout_s: float) -> tuple[str, ...]:
    """Return the addresses that acknowledge small packets and do not acknowledge large ones before `timeout_s` is over.

    Args:
        open_ports: ports of gRPC servers. They get HTTP/2's opening and then a frame of no known type, which HTTP/2
            tells them to discard (RFC 9113, 4.1).
        timeout_s: for all of them; what is acknowledged at once takes a round trip.
    """
    deadline = time.monotonic() + timeout_s
    waiting: dict[str, socket.socket] = {}
    try:
        for port in open_ports:
            with suppress(OSError):
                connection = waiting[port.address] = socket.create_connection((port.address, port.port), 0.5)
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.send(_HTTP2_OPENING)
        _wait_acknowledged(waiting, (deadline + time.monotonic()) / 2)
        small = {address: connection for address, connection in waiting.items() if not _unacknowledged(connection)}
        for connection in small.values():
            with suppress(OSError):
                connection.send(_IGNORED_FRAME)
        _wait_acknowledged(small, deadline)
        return tuple(a for a, connection in small.items() if _unacknowledged(connection) == len(_IGNORED_FRAME))
    finally:
        for connection in waiting.values():
            connection.close()


def _wait_acknowledged(connections: Mapping[str, socket.socket], deadline: float) -> None:
    while any(map(_unacknowledged, connections.values())) and time.monotonic() < deadline:
        time.sleep(0.005)


def _unacknowledged(connection: socket.socket) -> int:
    """How many of the bytes that were sent the other machine's kernel has not acknowledged."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(connection, termios.TIOCOUTQ, count)
    except OSError:
        return 0
    return count[0]


def _connect_batch(targets: list[Target], timeout_s: float) -> list[Contact]:
    answers: dict[int, Contact] = {}
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        try:
            for index, target in enumerate(targets):
                started = time.perf_counter()
                handle, code = _begin(target)
                if handle is None or code:
                    answers[index] = _failed(target, code)
                    if handle is not None:
                        handle.close()
                    continue
                selector.register(handle, selectors.EVENT_WRITE, (index, started))
            while len(answers) < len(targets) and (remaining := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(remaining):
                    now = time.perf_counter()
                    index, started = cast(tuple[int, float], key.data)
                    answers[index] = _answer(targets[index], key.fileobj, now - started)
                    selector.unregister(key.fileobj)
                    _close(key.fileobj)
        finally:
            for key in list(selector.get_map().values()):
                _close(key.fileobj)
    return [answers.get(index) or _silent(target, timeout_s) for index, target in enumerate(targets)]


def _begin(target: Target) -> tuple[socket.socket | None, int]:
    """A socket that is connecting, or the error."""
    handle: socket.socket | None = None
    try:
        handle = socket.socket(socket.AF_INET6 if ":" in target.address else socket.AF_INET, socket.SOCK_STREAM)
        handle.setblocking(False)
        code = handle.connect_ex((target.address, target.port))
    except OSError as error:  # a name instead of an address, no IPv6 here, no file descriptor left
        return handle, error.errno or errno.EINVAL
    except OverflowError:
        return handle, errno.EINVAL
    return handle, 0 if code in (0, errno.EINPROGRESS) else code


def _close(handle: object) -> None:
    if isinstance(handle, socket.socket):
        handle.close()


def _answer(target: Target, handle: object, seconds: float) -> Contact:
    code = handle.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if isinstance(handle, socket.socket) else errno.EBADF
    if code:
        return _failed(target, code)
    return Contact(address=target.address, port=target.port, what=target.what, outcome="open", rtt_s=seconds)


def _failed(target: Target, code: int) -> Contact:
    detail = os.strerror(code) if code > 0 else "is no address"  # the resolver's own codes are negative
    outcome = _OUTCOMES.get(code, "error")
    return Contact(address=target.address, port=target.port, what=target.what, outcome=outcome, detail=detail)


def _silent(target: Target, timeout_s: float) -> Contact:
    """Nothing came: dropped on the way, unless the machine is not there at all."""
    detail = f"no answer within {timeout_s:.1f} s"
    outcome = "filtered"
    if _is_unheard(target.address):
        outcome, detail = "unreachable", "no machine on this network answers for that address (ARP)"
    return Contact(address=target.address, port=target.port, what=target.what, outcome=outcome, detail=detail)


def _is_unheard(address: str) -> bool:
    """Whether the kernel asked the local network for this address and got no answer."""
    try:
        with open("/proc/net/arp", encoding="ascii", errors="replace") as table:
            rows = [line.split() for line in table.readlines()[1:]]
    except OSError:
        return False
    flags = [row[2] for row in rows if len(row) >= 6 and row[0] == address]
    return bool(flags) and all(flag == "0x0" for flag in flags)
