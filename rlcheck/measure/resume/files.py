"""One file of a checkpoint: is it all there? Ends, headers and sizes are read, and no pickle is ever opened."""

from __future__ import annotations

import hashlib
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import msgspec

from rlcheck.facts.resume import Damage

_END, _END_BYTES = b"PK\x05\x06", 22
_END64, _LOCATOR64 = b"PK\x06\x06", b"PK\x06\x07"
_MOST_COMMENT = 1 << 16
_MOST_JSON = 64 << 20
_MOST_HEADER = 100_000_000
"""Of a safetensors file, as its own library allows."""
_MOST_DIRECTORY = 256 << 20
_CHUNK_BYTES = 1 << 22
_LEGACY = b"\x80"
"""How a pickle begins: torch wrote them bare before 1.6, and verl's data order may be one."""

Kind = Literal["missing", "empty", "cut", "changed", "unreadable"]


class NotWhole(Exception):
    """What is wrong with a file; the message follows its name."""

    def __init__(self, kind: Kind, why: str) -> None:
        super().__init__(why)
        self.kind: Kind = kind
        self.why = why


def size_of(path: Path) -> int:
    """Bytes of the regular file at PATH.

    Raises:
        NotWhole: there is none.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise NotWhole("missing", "is missing") from None
    except OSError as error:
        raise NotWhole("unreadable", f"cannot be looked at: {error.strerror or error}") from None
    if not stat.S_ISREG(found.st_mode):
        raise NotWhole("unreadable", "is no regular file")
    return found.st_size


def damage_of(path: Path, name: str, *, read_all: bool = False) -> Damage | None:
    """What is wrong with the file at PATH, called NAME; None: as far as its end and header say, nothing.

    READ_ALL: also read what is in it, where its format has checksums.
    """
    try:
        size = size_of(path)
        if not size:
            raise NotWhole("empty", "is empty")
        look = _LOOKS.get(path.suffix)
        if look is not None:
            with path.open("rb") as file:
                look(file, size, read_all)
    except NotWhole as error:
        return Damage(file=name, kind=error.kind, why=error.why)
    except OSError as error:
        return Damage(file=name, kind="unreadable", why=f"cannot be read: {error.strerror or error}")
    return None


def read_json(path: Path) -> Any:
    """The JSON at PATH.

    Raises:
        NotWhole: it is missing, too large, or no JSON.
    """
    size = size_of(path)
    if size > _MOST_JSON:
        raise NotWhole("unreadable", f"has {size >> 20} MiB, and no more than {_MOST_JSON >> 20} are read")
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise NotWhole("unreadable", f"cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise NotWhole("cut" if size else "empty", "is no whole JSON" if size else "is empty") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object at PATH.

    Raises:
        NotWhole: as `read_json`, or it is no object.
    """
    found = read_json(path)
    if not isinstance(found, dict):
        raise NotWhole("changed", "holds no JSON object")
    return mapping(cast("object", found))


def mapping(value: object) -> dict[str, Any]:
    """VALUE of decoded JSON, where it is an object; else nothing."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def digest_of(path: Path) -> str:
    """SHA-256 of the file at PATH.

    Raises:
        NotWhole: it cannot be read.
    """
    size_of(path)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise NotWhole("unreadable", f"cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()


def _torch(file: BinaryIO, size: int, read_all: bool) -> None:
    """A zip archive, as torch.save writes: its directory comes last, so that a file that was cut has none."""
    head = file.read(4)
    if head[:1] == _LEGACY:
        return  # a bare pickle; where it ends is known to the one alone who runs it
    if head != b"PK\x03\x04":
        raise NotWhole("changed", "does not begin as torch.save writes")
    _directory(file, size)
    if read_all:
        _read_archive(file)


def _stream(file: BinaryIO, size: int, read_all: bool) -> None:
    """Archives one after the other, as torch.distributed.checkpoint writes; the last must have its end."""
    del read_all
    if file.read(4) == b"PK\x03\x04":
        _end_of(file, size)


def _end_of(file: BinaryIO, size: int) -> tuple[int, bytes]:
    """Where the archive's end record is, and the record."""
    length = min(size, _MOST_COMMENT + _END_BYTES)
    file.seek(size - length)
    tail = file.read(length)
    at = tail.rfind(_END)
    record = tail[at : at + _END_BYTES]
    if at < 0 or len(record) < _END_BYTES or at + _END_BYTES + struct.unpack("<H", record[20:])[0] != len(tail):
        raise NotWhole("cut", "is cut: the end of its archive is missing")
    return size - length + at, record


def _directory(file: BinaryIO, size: int) -> None:
    """The archive's directory is where its end record says, and ends there."""
    at, record = _end_of(file, size)
    length, offset = struct.unpack("<II", record[12:20])
    if at >= 20:
        file.seek(at - 20)
        locator = file.read(20)
        if locator[:4] == _LOCATOR64:
            at = struct.unpack("<Q", locator[8:16])[0]
            if at > size - 56:
                raise NotWhole("cut", "is cut: its archive's directory lies beyond its end")
            file.seek(at)
            record = file.read(56)
            if record[:4] != _END64:
                raise NotWhole("changed", "has lost its archive's directory")
            length, offset = struct.unpack("<QQ", record[40:56])
    if offset + length != at or length > _MOST_DIRECTORY:
        raise NotWhole("cut", f"is cut, or has grown: its archive's directory should end at byte {offset + length}")
    file.seek(offset)
    if file.read(4) != b"PK\x01\x02":
        raise NotWhole("changed", "has lost its archive's directory")


def _read_archive(file: BinaryIO) -> None:
    """Every record has its checksum."""
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            odd = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, EOFError, struct.error):
        raise NotWhole("changed", "has records that cannot be read") from None
    if odd is not None:
        raise NotWhole("changed", f"has changed: the checksum of its record {odd[-80:]} is another")


def _safetensors(file: BinaryIO, size: int, read_all: bool) -> None:
    """Length, JSON header, data: the header says where the data ends."""
    del read_all
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > _MOST_HEADER or 8 + length > size:
        raise NotWhole("cut", "is cut: its header is not all there")
    try:
        tensors = msgspec.json.decode(file.read(length), type=dict[str, dict[str, Any]])
        ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
        end = 8 + length + max((int(one) for one in ends), default=0)
    except (msgspec.DecodeError, ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError):
        raise NotWhole("changed", "has a header that cannot be read") from None
    if end != size:
        raise NotWhole("cut", f"has {size} bytes, and its header says {end}")


def _json(file: BinaryIO, size: int, read_all: bool) -> None:
    del size, read_all
    read_json(Path(file.name))


_LOOKS: dict[str, Callable[[BinaryIO, int, bool], None]] = {
    ".pt": _torch,
    ".pth": _torch,
    ".bin": _torch,
    ".safetensors": _safetensors,
    ".distcp": _stream,
    ".json": _json,
}
