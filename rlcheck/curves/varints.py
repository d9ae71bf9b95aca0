"""Fields of a protocol buffers message, by their places in the bytes.

Source: the wire format as protobuf.dev/programming-guides/encoding describes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_LONGEST = 10


class WireError(Exception):
    """Bytes that are no message."""


class Field(NamedTuple):
    """A field: its number, how it is written, and where its content begins and ends."""

    number: int
    wire: int
    start: int
    end: int


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """The fields of the message in DATA from START to END.

    Raises:
        WireError: they do not fill it, or are written in a way that has been given up.
    """
    while start < end:
        key, start = varint(data, start, end)
        wire, stop = key & 7, start
        if wire == VARINT:
            _, stop = varint(data, start, end)
        elif wire == BYTES:
            length, start = varint(data, start, end)
            stop = start + length
        elif wire in _SIZES:
            stop = start + _SIZES[wire]
        else:
            raise WireError("a group")
        if stop > end:
            raise WireError("a field that is longer than its message")
        yield Field(key >> 3, wire, start, stop)
        start = stop


def varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    """The number that begins at START, not above END, and where it ends.

    Raises:
        WireError: it does not end.
    """
    for stop in range(start, min(end, start + _LONGEST)):
        if data[stop] < 0x80:
            return unsigned(data[start : stop + 1]), stop + 1
    raise WireError("a number that does not end")


def unsigned(raw: bytes) -> int:
    """The number that RAW spells, seven bits a byte, the lowest first."""
    value = 0
    for byte in reversed(raw):
        value = value << 7 | byte & 0x7F
    return value


def signed(raw: bytes) -> int:
    """As `unsigned`, of an int64."""
    value = unsigned(raw) & (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
