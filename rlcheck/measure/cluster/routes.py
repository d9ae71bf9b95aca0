"""The way that the kernel would send a packet: source address, interface, gateway. Nothing is sent.

Asked of the kernel itself (rtnetlink, as `ip route get` does), so that routing rules, tables of VPNs and addresses that
are this machine's own are all taken into account. Source: https://man7.org/linux/man-pages/man7/rtnetlink.7.html
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

from rlcheck.facts.reach import Route

_NETLINK_ROUTE = 0
_RTM_GETROUTE, _NLMSG_ERROR, _NLM_F_REQUEST = 26, 2, 1
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC = 1, 4, 5, 7
_RTN_LOCAL = 2
_HEADER, _ROUTE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI"), struct.Struct("=HH")
_TIMEOUT_S = 1.0
# What the kernel says of routes that were made to refuse (`ip route add unreachable …`).
_BY_TYPE = {6: "a blackhole route drops it", 7: "an unreachable route refuses it", 8: "a prohibit route refuses it"}


def route_to(address: str) -> Route:
    """The route to a literal address."""
    source, error = _source(address)
    try:
        kind, attributes = _ask_kernel(address)
    except OSError as problem:
        # No netlink here (gVisor, some sandboxes), or the kernel's own word that there is no route.
        is_no_route = problem.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL)
        words = error or (os.strerror(problem.errno) if is_no_route and not source and problem.errno else "")
        return Route(destination=address, source=source, is_local=bool(source) and source == address, error=words)
    return Route(
        destination=address,
        source=source or _text(attributes.get(_RTA_PREFSRC, b"")),
        interface=_interface(attributes.get(_RTA_OIF, b"")),
        is_local=kind == _RTN_LOCAL,
        gateway=_text(attributes.get(_RTA_GATEWAY, b"")),
        error=_BY_TYPE.get(kind, error),
    )


def _source(address: str) -> tuple[str, str]:
    """The source address that a connected datagram socket gets, or the system's words."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as handle:
            handle.connect((address, 9))  # the port plays no part: nothing is sent
            return str(handle.getsockname()[0]), ""
    except OSError as error:
        return "", error.strerror or str(error)


def _ask_kernel(address: str) -> tuple[int, dict[int, bytes]]:
    """Type and attributes of the route."""
    packed = ipaddress.ip_address(address.partition("%")[0]).packed
    family = socket.AF_INET6 if len(packed) == 16 else socket.AF_INET
    body = _ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _RTA_DST) + packed
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as handle:
        handle.settimeout(_TIMEOUT_S)
        handle.sendto(_HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + body, (0, 0))
        reply = handle.recv(1 << 16)
    if len(reply) < _HEADER.size + 4:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
    if _HEADER.unpack_from(reply)[1] == _NLMSG_ERROR:
        code = -struct.unpack_from("=i", reply, _HEADER.size)[0]
        raise OSError(code, os.strerror(code))
    if len(reply) < _HEADER.size + _ROUTE.size:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
    kind = _ROUTE.unpack_from(reply, _HEADER.size)[7]
    return kind, dict(_attributes(reply[_HEADER.size + _ROUTE.size :]))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, place)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[place + _ATTRIBUTE.size : place + length]
        place += (length + 3) & ~3


def _text(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed)) if len(packed) in (4, 16) else ""


def _interface(index: bytes) -> str:
    if len(index) != 4:
        return ""
    try:
        return socket.if_indextoname(struct.unpack("=I", index)[0])
    except OSError:
        return ""
