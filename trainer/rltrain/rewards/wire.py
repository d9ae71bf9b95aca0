"""How a pool and its children talk: pickled messages with their length in front, and a counter in shared memory."""

from __future__ import annotations

import pickle
import struct
from mmap import mmap
from typing import Any

LENGTH = struct.Struct("!Q")
COUNTER = struct.Struct("@Q")


def pack(message: Any) -> bytes:
    """MESSAGE as it crosses."""
    body = pickle.dumps(message, protocol=5)
    return LENGTH.pack(len(body)) + body


class Inbox:
    """Bytes as they arrive, until they make a whole message."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        """Take in DATA."""
        self._bytes += data

    def take(self) -> tuple[Any] | None:
        """The next whole message, in a tuple of one; None while it is incomplete."""
        if len(self._bytes) < LENGTH.size:
            return None
        end = LENGTH.size + LENGTH.unpack_from(self._bytes)[0]
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[LENGTH.size : end])
        del self._bytes[:end]
        return (pickle.loads(body),)


class Progress:
    """What a child is working on: one number in memory that it shares with the pool, cheap to set for every sample."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap(descriptor, COUNTER.size)

    @property
    def value(self) -> int:
        """0: nothing yet; else 1 + sample x parts + part."""
        return COUNTER.unpack_from(self._memory)[0]

    @value.setter
    def value(self, number: int) -> None:
        """Note NUMBER, for the pool to read."""
        COUNTER.pack_into(self._memory, 0, number)

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()
