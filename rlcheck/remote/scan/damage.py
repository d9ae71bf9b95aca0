"""Installed libraries that are not what RECORD says: cut short, or links that point nowhere. No file is read whole."""

from __future__ import annotations

import os
import re
import struct
from typing import Iterator

from .distributions import Record
from .files import read
from .owners import Contents

_LIBRARY = re.compile(rb"\n([^\n,]+\.so(?:\.[\d.]+)?),[^\n,]*,(\d+)(?=\r?\n|$)")
_INSTALLERS = ("pip", "uv")  # conda and distributions change libraries after their RECORD was written
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LIMIT = 2000


def mark(contents: list[Contents], wanted: set[str]) -> None:
    """Set `damaged` of each distribution of `wanted` that has such a library: lines `path: what is wrong`."""
    for item in contents:
        record = item.record
        if record.name in wanted and record.details.get("installer", "").lower() in _INSTALLERS:
            found = list(_damaged(record, item.data))
            if found:
                record.details["damaged"] = found


def _libraries(data: bytes) -> Iterator["re.Match[bytes]"]:
    """The lines of libraries: of a RECORD of thousands, those alone are looked at that hold the end of such a name."""
    place = data.find(b".so")
    while place >= 0:
        match = _LIBRARY.match(data, data.rfind(b"\n", 0, place))
        if match is not None:
            yield match
        end = data.find(b"\n", place)
        place = data.find(b".so", end) if end >= 0 else -1


def _damaged(record: Record, data: bytes) -> Iterator[str]:
    for count, match in enumerate(_libraries(data)):
        if count >= _LIMIT:
            return
        name, expected = match.group(1).decode("utf-8", "surrogateescape"), int(match.group(2))
        path = f"{record.location}/{name}"
        try:
            size = os.stat(path).st_size
        except OSError:
            if os.path.islink(path):
                yield f"{name}: a link that points nowhere ({os.readlink(path)})"
            continue  # one that is gone is missed by whoever needs it; images leave out what they do not need
        if size < expected and size < _end(path, expected):  # `strip` makes a library smaller, and leaves it whole
            yield f"{name}: cut short, {size} of {expected} bytes"


def _end(path: str, expected: int) -> int:
    """Where an ELF file must end at the earliest, by its own header; `expected` for what is none."""
    data = read(path, 1 << 16) or b""
    try:
        header = _HEADER.unpack_from(data)
        ends = [header[6] + header[11] * header[12]]
        for number in range(header[10]):
            segment = _SEGMENT.unpack_from(data, header[5] + number * header[9])
            ends.append(segment[2] + segment[5])
    except struct.error:
        return expected
    return max(ends) if data[:4] == b"\x7fELF" else expected
