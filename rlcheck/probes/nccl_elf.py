"""Reads from an ELF file what the dynamic linker will do with it: a few kilobytes, whatever the file's size."""

from __future__ import annotations

import mmap
import re
import struct
import time

from rlcheck.facts.base import Struct

_DYNAMIC, _LOAD = 2, 1
_NEEDED, _STRTAB, _RPATH, _RUNPATH = 1, 5, 15, 29
_STRING_LIMIT = 4096
_HEADER_LIMIT = 512
_VERSION_MARKS = (b"NCCL version 2.", b"NCCL version 3.", b"RCCL version 2.")
_NOT_VERSION = re.compile(r"[^0-9.]")
_CHUNK = 1 << 22


class Dynamic(Struct, frozen=True):
    """NEEDED libraries, RPATH and RUNPATH (as lists of directories) of a shared object."""

    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()


def read_dynamic(path: str) -> Dynamic | None:
    """The dynamic section of a 64-bit little-endian ELF file, or None when there is none or it makes no sense."""
    try:
        with open(path, "rb") as file:
            return _parse(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError, struct.error, OverflowError):
        return None


def _parse(data: mmap.mmap) -> Dynamic | None:
    with data:
        if data[:6] != b"\x7fELF\x02\x01":
            return None
        offset, size, count = struct.unpack_from("<Q14xHH", data, 32)
        headers = [struct.unpack_from("<II6Q", data, offset + size * i) for i in range(min(count, _HEADER_LIMIT))]
        dynamic = next((header for header in headers if header[0] == _DYNAMIC), None)
        if dynamic is None:
            return None
        entries = _entries(data, dynamic[2], min(dynamic[5], 1 << 16))
        table = next((value for tag, value in entries if tag == _STRTAB), 0)
        base = _file_offset(headers, table)
        if base is None:
            return None
        return Dynamic(
            needed=tuple(_string(data, base + value) for tag, value in entries if tag == _NEEDED),
            rpath=_directories(data, base, entries, _RPATH),
            runpath=_directories(data, base, entries, _RUNPATH),
        )


def _entries(data: mmap.mmap, offset: int, size: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for tag, value in struct.iter_unpack("<qQ", data[offset : offset + size // 16 * 16]):
        if tag == 0:
            break
        found.append((tag, value))
    return found


def _file_offset(headers: list[tuple[int, ...]], address: int) -> int | None:
    for type_, _, offset, virtual, _, size, _, _ in headers:
        if type_ == _LOAD and virtual <= address < virtual + size:
            return offset + address - virtual
    return None


def _string(data: mmap.mmap, offset: int) -> str:
    return data[offset : offset + _STRING_LIMIT].partition(b"\0")[0].decode("utf-8", "replace")


def _directories(data: mmap.mmap, base: int, entries: list[tuple[int, int]], wanted: int) -> tuple[str, ...]:
    joined = ":".join(_string(data, base + value) for tag, value in entries if tag == wanted)
    return tuple(part for part in joined.split(":") if part)


def version_in_file(path: str, budget_s: float = 0.1) -> str:
    """The version that a libnccl or librccl file carries as text, or "" when it is not found within the budget.

    The read-only data lies in the first megabytes, before the GPU code that makes up the bulk.
    """
    deadline = time.monotonic() + budget_s
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for start in range(0, len(data), _CHUNK):
                found = _version_in(data, start, start + _CHUNK + 64)
                if found or time.monotonic() > deadline:
                    return found
    except (OSError, ValueError):
        return ""
    return ""


def _version_in(data: mmap.mmap, start: int, end: int) -> str:
    for mark in _VERSION_MARKS:
        at = data.find(mark, start, end)
        if at >= 0:
            text = data[at + len(mark) - 2 : at + len(mark) + 24].decode("ascii", "replace")
            return _NOT_VERSION.split(text, maxsplit=1)[0].strip(".")
    return ""
