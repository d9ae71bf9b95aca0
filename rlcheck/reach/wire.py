"""Reading the protobuf wire format, and writing the few requests that are needed.

Ray's GCS speaks protobuf; its generated classes come with ray alone. Reading the wire format takes a page and needs
none. The bytes come from whoever answers at a port, so nothing in here trusts them: lengths are checked, numbers are
bounded, and everything that is not a message raises `WireError`.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


class WireError(ValueError):
    """Bytes that are no protobuf message."""


class Message:
    """The fields of one message, by number. Unknown fields are kept and never in the way.

    A field that is there with another wire type than the one asked for counts as not there: that is what a server of
    another version, or no such server at all, would send.
    """

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes | float]] = {}
        for number, value in _fields(data):
            self._fields.setdefault(number, []).append(value)

    def blobs(self, number: int) -> list[bytes]:
        """Every occurrence of a bytes, string or message field."""
        return [value for value in self._fields.get(number, ()) if isinstance(value, bytes)]

    def blob(self, number: int) -> bytes:
        """The last occurrence, as protobuf has it; empty when the field is not set."""
        return next(reversed(self.blobs(number)), b"")

    def text(self, number: int, limit: int = 4096) -> str:
        """A string field, at most `limit` characters of it, unprintable ones replaced."""
        text = self.blob(number)[: 4 * limit].decode("utf-8", "replace")[:limit]
        return "".join(char if char.isprintable() else " " for char in text)

    def message(self, number: int) -> Message:
        """A message field; an empty message when it is not set."""
        return Message(self.blob(number))

    def messages(self, number: int) -> list[Message]:
        """A repeated message field."""
        return [Message(value) for value in self.blobs(number)]

    def integer(self, number: int) -> int:
        """An int32, int64, bool or enum field; 0 when it is not set."""
        found = next((v for v in reversed(self._fields.get(number, [])) if isinstance(v, int)), 0)
        return found - (1 << 64) if found >> 63 else found

    def real(self, number: int) -> float:
        """A double field; 0 when it is not set."""
        return next((v for v in reversed(self._fields.get(number, [])) if isinstance(v, float)), 0.0)

    def quantities(self, number: int) -> dict[str, float]:
        """A map of names to doubles, such as resources: sorted by name, only real numbers."""
        found = {entry.text(1, 200): entry.real(2) for entry in self.messages(number)}
        return {name: value for name, value in sorted(found.items()) if abs(value) < 1e18}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes | float]]:
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise WireError(f"field number {number}")
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield number, value
        elif kind == _FIXED64:
            yield number, struct.unpack("<d", _take(data, place, 8))[0]
            place += 8
        elif kind == _BYTES:
            length, place = _varint(data, place)
            yield number, _take(data, place, length)
            place += length
        elif kind == _FIXED32:
            yield number, struct.unpack("<f", _take(data, place, 4))[0]
            place += 4
        else:
            raise WireError(f"wire type {kind}")


def _take(data: bytes, place: int, length: int) -> bytes:
    if length > len(data) - place:
        raise WireError(f"{length} bytes announced, {len(data) - place} left")
    return data[place : place + length]


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[place : place + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & (1 << 64) - 1, place + index + 1
    raise WireError("a number without an end")


def field(number: int, value: bytes | int) -> bytes:
    """One field of a request: bytes (a string, too), or a number that is not negative."""
    if isinstance(value, int):
        return _number(number << 3 | _VARINT) + _number(value)
    return _number(number << 3 | _BYTES) + _number(len(value)) + value


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
