"""As much of HTTP/2's client side as a unary gRPC call needs. Bytes in, events out; touches no socket.

The doctor's installation is held to twelve small packages, and the library for this would bring three more
(docs/adr/0013). What is left out: server push, priorities, HPACK's dynamic table (refused in our settings) and, of its
static table, all but what a gRPC answer can use.

Source: RFC 9113 (HTTP/2) and RFC 7541 (HPACK).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from rlcheck.reach import huffman

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE = 1, 2, 4
_MAX_FRAME = 16384
_MAX_HEADERS = 64 << 10
_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65535
_STATIC_STATUS = {8: "200", 9: "204", 10: "206", 11: "304", 12: "400", 13: "404", 14: "500"}
"""The only entries of HPACK's static table whose value matters here: those of `:status`."""
UNREAD = "?"
"""A name or value from a part of the tables that is not kept here."""


class FrameError(Exception):
    """Bytes that no HTTP/2 server sends."""


@dataclass(frozen=True)
class Event:
    """What a server said. `code` is HTTP/2's error code of a reset or goaway; `stream` 0 is the whole connection."""

    kind: Literal["headers", "data", "reset", "goaway"]
    stream: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    data: bytes = b""
    code: int = 0
    ended: bool = False


@dataclass
class Client:
    """The client's side of one connection. `outgoing` is what must be sent; take it with `data_to_send`."""

    _outgoing: bytearray = field(default_factory=bytearray)
    _incoming: bytearray = field(default_factory=bytearray)
    _next_stream: int = 1
    _block: tuple[int, bool, bytearray] | None = None
    _greeted: bool = False

    def __post_init__(self) -> None:
        settings = ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW_SIZE, _WINDOW))
        payload = b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in settings)
        self._outgoing += _PREFACE + _frame(_SETTINGS, 0, 0, payload)
        self._outgoing += _frame(_WINDOW_UPDATE, 0, 0, (_WINDOW - _FIRST_WINDOW).to_bytes(4, "big"))

    def data_to_send(self) -> bytes:
        """What to send now; it is handed out once."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def request(self, headers: Iterable[tuple[str, str]], body: bytes) -> int:
        """Open a stream with one whole request; its number.

        Raises:
            ValueError: headers or body are larger than one frame.
        """
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        block = b"".join(b"\0" + _string(name) + _string(value) for name, value in headers)
        if max(len(block), len(body)) > _MAX_FRAME:
            raise ValueError("a request larger than one frame")
        self._outgoing += _frame(_HEADERS, _END_HEADERS, stream, block) + _frame(_DATA, _END_STREAM, stream, body)
        return stream

    def receive(self, data: bytes) -> list[Event]:
        """The events in what came.

        Raises:
            FrameError: this is no HTTP/2.
        """
        self._incoming += data
        events: list[Event] = []
        while len(self._incoming) >= 9:
            length, kind, flags = int.from_bytes(self._incoming[:3], "big"), self._incoming[3], self._incoming[4]
            if length > _MAX_FRAME or (not self._greeted and kind != _SETTINGS):
                raise FrameError("the first bytes are no HTTP/2 settings" if not self._greeted else "a giant frame")
            self._greeted = True
            if len(self._incoming) < 9 + length:
                break
            stream = int.from_bytes(self._incoming[5:9], "big") & 0x7FFFFFFF
            payload = bytes(self._incoming[9 : 9 + length])
            del self._incoming[: 9 + length]
            events += self._take(kind, flags, stream, payload)
        return events

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if self._block is not None and kind != _CONTINUATION:
            raise FrameError("a frame in the middle of headers")
        if kind == _DATA:
            yield Event("data", stream, data=_unpadded(flags, payload), ended=bool(flags & _END_STREAM))
        elif kind in (_HEADERS, _CONTINUATION):
            yield from self._headers(kind, flags, stream, payload)
        elif kind == _RST_STREAM:
            yield Event("reset", stream, code=int.from_bytes(payload[:4], "big"))
        elif kind == _GOAWAY:
            yield Event("goaway", code=int.from_bytes(payload[4:8], "big"))
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._outgoing += _frame(kind, _ACK, 0, payload if kind == _PING else b"")

    def _headers(self, kind: int, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        """A block of headers, which may come in several frames."""
        if kind == _HEADERS:
            payload = _unpadded(flags, payload)
            self._block = (stream, bool(flags & _END_STREAM), bytearray(payload[5:] if flags & _PRIORITY else payload))
        elif self._block is None or self._block[0] != stream:
            raise FrameError("a continuation of nothing")
        else:
            self._block[2].extend(payload)
        number, ended, block = self._block
        if len(block) > _MAX_HEADERS:
            raise FrameError("giant headers")
        if flags & _END_HEADERS:
            self._block = None
            yield Event("headers", number, headers=tuple(_decode(bytes(block))), ended=ended)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise FrameError("more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def _string(text: str) -> bytes:
    data = text.encode()
    return _integer(len(data), 7) + data


def _integer(value: int, bits: int) -> bytes:
    """HPACK's integer with a prefix of `bits` bits, whose other bits are 0 (RFC 7541, 5.1)."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((value,))
    rest, out = value - limit, bytearray((limit,))
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _decode(block: bytes) -> Iterator[tuple[str, str]]:
    """The headers of an HPACK block; what refers to a part of the tables that is not kept comes as `UNREAD`."""
    reader = _Reader(block)
    while not reader.ended:
        first = reader.peek()
        if first & 0x80:  # a whole entry of a table
            index = reader.integer(7)
            yield (":status", _STATIC_STATUS[index]) if index in _STATIC_STATUS else (UNREAD, UNREAD)
        elif first & 0xE0 == 0x20:  # a change of the dynamic table's size
            reader.integer(5)
        else:  # a literal, with the name perhaps from a table
            index = reader.integer(6 if first & 0x40 else 4)
            name = reader.string() if index == 0 else ":status" if index in _STATIC_STATUS else UNREAD
            yield name.lower(), reader.string()


class _Reader:
    """Reads HPACK's integers and strings."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._data)

    def peek(self) -> int:
        return self._data[self._at]

    def integer(self, bits: int) -> int:
        limit = (1 << bits) - 1
        value = self._byte() & limit
        shift = 0
        while value >= limit:
            byte = self._byte()
            value += (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
            if shift > 28:
                raise FrameError("a giant integer")
        return value

    def string(self) -> str:
        if self.ended:
            raise FrameError("headers are cut short")
        is_coded = bool(self.peek() & 0x80)
        length = self.integer(7)
        if self._at + length > len(self._data):
            raise FrameError("headers are cut short")
        data = self._data[self._at : self._at + length]
        self._at += length
        try:
            return (huffman.decode(data) if is_coded else data).decode("utf-8", "replace")
        except ValueError as error:
            raise FrameError(str(error)) from None

    def _byte(self) -> int:
        if self.ended:
            raise FrameError("headers are cut short")
        self._at += 1
        return self._data[self._at - 1]
