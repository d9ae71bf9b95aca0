"""The bytes of a log as UTF-8: unpacked, decoded, in pieces; what stops the reading becomes a sentence."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from typing import IO

CHUNK = 1 << 20
_SMALL = 1 << 16
"""Unpacked at once: a megabyte of zeros is a thousand bytes in the file."""


class Reader:
    """Iterates over the bytes of an open log. `problem` says afterwards why it ended early, if it did."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.problem = ""

    @classmethod
    def of_nothing(cls, problem: str) -> Reader:
        """No bytes at all, and why."""
        reader = cls(io.BufferedReader(io.BytesIO()))  # pyright: ignore[reportArgumentType]
        reader.problem = problem
        return reader

    def __iter__(self) -> Iterator[bytes]:
        chunks = self._chunks()
        first = next(chunks, b"")
        encoding = _utf_16(first)
        if not encoding:
            yield from ([first] if first else [])
            yield from chunks
            return
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        yield decoder.decode(first).lstrip("\ufeff").encode("utf-8", "replace")
        for chunk in chunks:
            yield decoder.decode(chunk).encode("utf-8", "replace")
        yield decoder.decode(b"", True).encode("utf-8", "replace")

    def _chunks(self) -> Iterator[bytes]:
        errors: tuple[type[Exception], ...] = (OSError, EOFError)
        kind = ""
        try:
            kind = packed(self._stream.peek(6))
            if kind:
                stream, errors = _unpacked(self._stream, kind)
                while chunk := stream.read(_SMALL):
                    yield chunk
            # Not `read`: an error would take with it what was read before.
            while not kind and (chunk := self._stream.read1(CHUNK)):
                yield chunk
        except errors as error:
            if kind and isinstance(error, EOFError):
                self.problem = f"the {kind} file ends too early; what could be unpacked was read"
            elif kind:
                self.problem = f"the {kind} file is damaged ({error}); what could be unpacked was read"
            else:
                self.problem = f"could not be read to its end: {error}"


def packed(start: bytes) -> str:
    """How a file that begins like this is packed; empty if it is not."""
    if start.startswith(b"\x1f\x8b"):
        return "gzip"
    if start.startswith(b"BZh"):
        return "bzip2"
    return "xz" if start.startswith(b"\xfd7zXZ\x00") else ""


def _unpacked(stream: IO[bytes], kind: str) -> tuple[IO[bytes], tuple[type[Exception], ...]]:
    """The stream behind a packed one, and what reading it may raise. Imported here: most logs are not packed."""
    if kind == "gzip":
        import gzip
        import zlib

        return gzip.GzipFile(fileobj=stream, mode="rb"), (OSError, EOFError, zlib.error)  # pyright: ignore[reportReturnType]
    if kind == "bzip2":
        import bz2

        return bz2.BZ2File(stream), (OSError, EOFError, ValueError)
    import lzma

    return lzma.LZMAFile(stream), (OSError, EOFError, lzma.LZMAError)


def _utf_16(start: bytes) -> str:
    if start.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    return "utf-16-be" if start.startswith(codecs.BOM_UTF16_BE) else ""
