"""Reading small files and directories: no exception, nothing that blocks, nothing huge."""

from __future__ import annotations

import os
import stat

READ_LIMIT_BYTES = 1 << 20


def read(path: str, limit: int = READ_LIMIT_BYTES) -> bytes | None:
    """The first `limit` bytes of a regular file, or None when there is no such file or it cannot be read.

    Opened without blocking: a pipe or a device in its place must not stop the scan.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return os.read(descriptor, min(limit, status.st_size))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def text(path: str, limit: int = READ_LIMIT_BYTES) -> str:
    """The text of a file, undecodable bytes replaced; "" when it cannot be read."""
    return (read(path, limit) or b"").decode("utf-8", "replace")


class Listings:
    """The names in directories, each directory read once."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._sets: dict[str, frozenset[str]] = {}

    def names(self, directory: str) -> list[str]:
        """The sorted names in `directory`; none when it cannot be read."""
        if directory not in self._names:
            try:
                self._names[directory] = sorted(os.listdir(directory))
            except (OSError, ValueError):
                self._names[directory] = []
        return self._names[directory]

    def has(self, directory: str, name: str) -> bool:
        """Whether `directory` has an entry `name`."""
        if directory not in self._sets:
            self._sets[directory] = frozenset(self.names(directory))
        return name in self._sets[directory]
