"""Runs as trainers leave them: lines of JSON, and event files written message by message."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from rlcheck.measure.run.tensorboard import _masked_crc  # pyright: ignore[reportPrivateUsage]


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    """Write RECORDS to PATH, one JSON object a line; NaN as Python writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def varint(value: int) -> bytes:
    """VALUE, of which a negative one is taken as 64 bits, seven bits a byte."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def part(number: int, content: bytes) -> bytes:
    """The field NUMBER with CONTENT, of the kind that says its length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(message: bytes) -> bytes:
    """MESSAGE as a record of an event file; the checksum of the message itself is left zero."""
    head = struct.pack("<Q", len(message))
    return head + struct.pack("<I", _masked_crc(head)) + message + bytes(4)


def event(time: float, step: int, body: bytes) -> bytes:
    """An Event message; step 0 is not written, as protocol buffers do."""
    return b"\x09" + struct.pack("<d", time) + (b"\x10" + varint(step) if step else b"") + body


def scalar(tag: str, value: float, kind: str = "simple") -> bytes:
    """A Summary with one value: simple, or a tensor (`content`, `floats` or `doubles`)."""
    raw = struct.pack("<f", value)
    tensor = {
        "simple": b"",
        "content": b"\x08\x01" + part(2, b"") + part(4, raw),
        "floats": b"\x08\x01" + part(2, b"") + part(5, raw),
        "doubles": b"\x08\x02" + part(6, struct.pack("<d", value)),
    }[kind]
    body = part(1, tag.encode()) + (part(8, tensor) if tensor else b"\x15" + raw)
    return part(5, part(1, body))


def start(time: float) -> bytes:
    """The first record of an event file."""
    return record(event(time, 0, part(3, b"brain.Event:2")))
