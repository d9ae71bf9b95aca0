"""A stream of bytes in blocks of whole lines; a line too long for one comes in parts that overlap."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

BLOCK = 32 << 10
"""Bytes looked at together: many lines of one form, but little to keep when only its end matters."""
OVERLAP = 256
"""Bytes that two parts of one line share: more than any literal is long."""


class Block(msgspec.Struct, frozen=True):
    """Lines `first` to `last`, without the line break after the last.

    Of a line that is longer than a block, `part` counts the blocks before this one and `ends` is set on the last one.
    """

    first: int
    part: int
    data: bytes
    last: int
    ends: bool = True


class Cutter:
    """Cuts what it is fed into blocks."""

    def __init__(self) -> None:
        self._line = 1
        self._part = 0
        self._carry = b""

    @property
    def lines(self) -> int:
        """Lines so far; a last one without line break counts."""
        unfinished = bool(self._carry) and not self._carry.endswith(b"\n")
        return self._line - 1 + self._carry.count(b"\n") + unfinished

    def feed(self, data: bytes) -> Iterator[Block]:
        """The blocks that `data` completes."""
        data = self._carry + data
        start = 0
        while len(data) - start > BLOCK:
            end = data.rfind(b"\n", start, start + BLOCK)
            if end >= 0:
                yield self._block(data[start:end])
                start = end + 1
            else:
                yield Block(self._line, self._part, data[start : start + BLOCK], self._line, ends=False)
                self._part += 1
                start += BLOCK - OVERLAP
        self._carry = data[start:]

    def rest(self) -> Block | None:
        """What is not yet a block."""
        data = self._carry
        if not data:
            return None
        data = data[:-1] if data.endswith(b"\n") else data
        return Block(self._line, self._part, data, self._line + data.count(b"\n"))

    def _block(self, data: bytes) -> Block:
        last = self._line + data.count(b"\n")
        block = Block(self._line, self._part, data, last)
        self._line, self._part = last + 1, 0
        return block
