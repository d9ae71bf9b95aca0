"""Lines of a file of JSON objects: a slice of it by bytes, or all of a packed one."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any, BinaryIO, Iterator

KINDS = ("lines", "gz")
LIMIT_BYTES = 64 << 20
"""A longer line is not read: one that long is no row but a file without line ends."""


_WIDE = ((b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


class NotUsable(ValueError):
    """A line that gives no row."""

    def __init__(self, kind: str, text: str, column: int = 0) -> None:
        super().__init__(text)
        self.kind, self.text, self.column = kind, text, column


def wide_encoding(path: str, kind: str) -> str:
    """UTF-16 or UTF-32 where the first bytes say so, else ""."""
    with gzip.open(path, "rb") if kind == "gz" else open(path, "rb") as file:
        head = file.read(4)
    return next((name for mark, name in _WIDE if head.startswith(mark)), "")


def read(path: str, kind: str, start: int, end: int) -> Iterator[bytes]:
    """The lines that begin in [START, END) of a plain file, all of a packed one. Too long ones come cut."""
    if kind == "gz":
        with gzip.open(path, "rb") as file:
            while True:
                line = _line(file)
                if not line:
                    return
                yield line
    with open(path, "rb", buffering=1 << 20) as file:
        if start:
            file.seek(start - 1)
            while True:  # the line that the slice before this one has
                rest = file.readline(LIMIT_BYTES)
                if not rest or rest.endswith(b"\n"):
                    break
        at = file.tell()
        while at < end:
            line = _line(file)
            if not line:
                return
            yield line
            at = file.tell()


def _line(file: BinaryIO) -> bytes:
    line = file.readline(LIMIT_BYTES)
    rest = line
    while len(rest) == LIMIT_BYTES and not rest.endswith(b"\n"):
        rest = file.readline(LIMIT_BYTES)
    return line


def _unique(pairs: list) -> dict:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise NotUsable("double_key", f"the key {double[:40]!r} occurs twice in one object")
    return values


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_unique)
_CONTROL = re.compile("[\x00-\x1f]")


def text_of(line: bytes) -> str:
    """LINE as text.

    Raises:
        NotUsable: it is too long or no UTF-8.
    """
    if len(line) >= LIMIT_BYTES:
        raise NotUsable("line_long", f"a line of more than {LIMIT_BYTES >> 20} MiB")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUsable("utf8", f"byte 0x{line[error.start]:02x}", error.start + 1) from None


def raw_control(text: str) -> int:
    """The column of the first control character that a string of TEXT, which is JSON, holds unescaped; 0 for none."""
    if _CONTROL.search(text.rstrip("\r\n")) is None:
        return 0
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.colno
    return 0  # a tab between the values


def value_of(text: str) -> dict:
    """The object in TEXT.

    Raises:
        NotUsable: it is no JSON, no object, or has a key twice.
    """
    try:
        # Not strict: control characters in strings are looked for by their own check.
        value: Any = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise NotUsable("json", error.msg, error.colno) from None
    except RecursionError:
        raise NotUsable("json", "nested too deeply", 1) from None
    except NotUsable:
        raise
    except ValueError as error:  # a number of too many digits
        raise NotUsable("json", str(error)[:120], 1) from None
    if not isinstance(value, dict):
        raise NotUsable("no_object", f"{type(value).__name__} in place of an object", 1)
    return value
