"""The text of a config: of a plain file, of a pipe such as `<(…)` that somebody must write to, of standard input."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from pathlib import Path

from rlcheck.measure.config.errors import ReadError

# Bytes of the largest config that is read; a data set given by mistake is none.
_MAX_BYTES = 4 << 20
# Longest wait for whoever writes to a pipe.
_PIPE_DEADLINE_S = 10.0


def text_of(path: Path) -> str:
    """What PATH holds.

    Raises:
        ReadError: it cannot be read, is too large, or is no text.
    """
    try:
        found = path.stat()
        plain = stat.S_ISREG(found.st_mode)
        if plain and found.st_size > _MAX_BYTES:
            raise ReadError(f"{path}: {found.st_size >> 20} MiB is larger than any config; give a YAML or a script")
        return _decoded(str(path), path.read_bytes() if plain else _piped(path))
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from None


def text_of_input() -> str:
    """What standard input holds.

    Raises:
        ReadError: as `text_of`.
    """
    try:
        found = sys.stdin.buffer.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ReadError(f"<stdin>: cannot be read: {error.strerror}") from None
    return _decoded("<stdin>", _not_too_large("<stdin>", found))


def _decoded(name: str, found: bytes) -> str:
    try:
        return found.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ReadError(f"{name}: not UTF-8 text (byte {error.start}); give a YAML or a script") from None


def _not_too_large(name: str, found: bytes) -> bytes:
    if len(found) > _MAX_BYTES:
        raise ReadError(f"{name}: more than {_MAX_BYTES >> 20} MiB, larger than any config; give a YAML or a script")
    return found


def _piped(path: Path) -> bytes:
    """What comes out of a pipe or a device, with a deadline."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    found, deadline = b"", time.monotonic() + _PIPE_DEADLINE_S
    try:
        while len(found) <= _MAX_BYTES:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ReadError(f"{path}: nobody wrote to this pipe for {_PIPE_DEADLINE_S:.0f} s")
            part = os.read(descriptor, 1 << 16)
            if not part:
                break
            found += part
    finally:
        os.close(descriptor)
    return _not_too_large(str(path), found)
