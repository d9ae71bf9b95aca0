"""Reading the protobuf wire format, and writing the few requests that are needed.

Ray's GCS speaks it and TensorBoard's files are written in it; their generated classes come with those packages alone.
The bytes come from whoever answers at a port and whatever is on a disk, so nothing in here trusts them: lengths are
checked, numbers are bounded, and everything that is not a message raises `WireError`.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_REALS = {FIXED64: struct.Struct("<d"), FIXED32: struct.Struct("<f")}
_MAX_VARINT_BYTES = 10


class WireError(ValueError):
    """Bytes that are no protobuf message."""


class Field(NamedTuple):
    """A field of a message: its number, how it is written, and where its content begins and ends."""

    number: int
    wire: int
    start: int
    end: int


class Message:
    """The fields of one message, by number. Unknown fields are kept and never in the way.

    A field that is there with another wire type than the one asked for counts as not there: that is what a server of
    another version, or no such server at all, would send.
    """

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes | float]] = {}
        for number, wire, start, end in fields(data, 0, len(data)):
            raw = data[start:end]
            value = raw if wire == BYTES else unsigned(raw) if wire == VARINT else _REALS[wire].unpack(raw)[0]
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
        return _with_sign(next((v for v in reversed(self._fields.get(number, [])) if isinstance(v, int)), 0))

    def real(self, number: int) -> float:
        """A double field; 0 when it is not set."""
        return next((v for v in reversed(self._fields.get(number, [])) if isinstance(v, float)), 0.0)

    def quantities(self, number: int) -> dict[str, float]:
        """A map of names to doubles, such as resources: sorted by name, only real numbers."""
        found = {entry.text(1, 200): entry.real(2) for entry in self.messages(number)}
        return {name: value for name, value in sorted(found.items()) if abs(value) < 1e18}


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message that DATA holds from START to END.

    Raises:
        WireError: they do not fill it, or are written in a way that has been given up (groups).
    """
    while start < end:
        key, start = varint(data, start, end)
        number, wire, stop = key >> 3, key & 7, start
        if not 0 < number < 1 << 29:
            raise WireError(f"field number {number}")
        if wire == VARINT:
            _, stop = varint(data, start, end)
        elif wire == BYTES:
            length, start = varint(data, start, end)
            stop = start + length
        elif wire in _SIZES:
            stop = start + _SIZES[wire]
        else:
            raise WireError(f"wire type {wire}")
        if stop > end:
            raise WireError(f"{stop - start} bytes announced, {end - start} left")
        yield Field(number, wire, start, stop)
        start = stop


def varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the number that begins at START, and where it ends.

    Raises:
        WireError: it does not end before END.
    """
    for stop in range(start, min(end, start + _MAX_VARINT_BYTES)):
        if data[stop] < 0x80:
            return unsigned(data[start : stop + 1]), stop + 1
    raise WireError("a number without an end")


def unsigned(raw: bytes) -> int:
    """Return the number of 64 bits that RAW spells, seven bits a byte, the lowest first."""
    value = 0
    for byte in reversed(raw):
        value = value << 7 | byte & 0x7F
    return value & (1 << 64) - 1


def signed(raw: bytes) -> int:
    """Return the int64 that RAW spells."""
    return _with_sign(unsigned(raw))


def _with_sign(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def field(number: int, value: bytes | int) -> bytes:
    """One field of a request: bytes (a string, too), or a number that is not negative."""
    if isinstance(value, int):
        return _number(number << 3 | VARINT) + _number(value)
    return _number(number << 3 | BYTES) + _number(len(value)) + value


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
