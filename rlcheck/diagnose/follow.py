"""A log that is being written: what it says so far, each time that its writer pauses."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable, Iterator

from rlcheck.diagnose.condense import Growing
from rlcheck.diagnose.model import CondensedLog
from rlcheck.diagnose.reader import CHUNK, packed
from rlcheck.diagnose.signatures import Index
from rlcheck.diagnose.sources import open_log
from rlcheck.errors import UserError

QUIET = 1.0
"""Seconds without a new byte after which what is there is looked at."""
_BUSY = 10.0
"""Seconds after which it is looked at although it is written all the time."""
_POLL = 0.2
APPEAR = 60.0
"""Seconds to wait for a log that is not there yet."""


class _Log:
    """The log as it is open now, and what of it was reported."""

    def __init__(self, path: str, index: Index, descriptor: int) -> None:
        self.path = path
        self._index = index
        self._problem = ""
        self._growing = Growing(index)
        self.descriptor = descriptor
        self.regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self.fresh = False
        self.ended = False
        self.seen = self._told = time.monotonic()

    def read(self) -> bool:
        """Take in one piece of what is there; False if there is nothing new."""
        # At the end of a file a read returns; of a pipe it waits, and nothing means that its writer is gone.
        if not self.regular and not select.select([self.descriptor], [], [], _POLL)[0]:
            return False
        data = os.read(self.descriptor, CHUNK)
        if not data:
            self.ended = not self.regular
            return False
        if not self._growing.total_bytes and (kind := packed(data)):
            raise UserError(f"{self.path}: a {kind} file; diagnose it without --follow")
        self._growing.feed(data)
        self.fresh, self.seen = True, time.monotonic()
        return True

    def due(self, quiet: float) -> bool:
        """Whether what is new should be reported now."""
        now = time.monotonic()
        return self.fresh and (now - self.seen >= quiet or now - self._told >= max(_BUSY, quiet))

    def state(self) -> CondensedLog:
        """What it says now."""
        self.fresh, self._told = False, time.monotonic()
        return self._growing.state(self.path, self._problem)

    def replaced(self) -> str:
        """Whether another file stands under its name, or it was cut short; in words, or empty."""
        if not self.regular:
            return ""
        mine = os.fstat(self.descriptor)
        try:
            there = os.stat(self.path)
        except OSError:  # moved away; the next one is not there yet
            return ""
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            return "another file has taken its place"
        return "it was cut short" if mine.st_size < os.lseek(self.descriptor, 0, os.SEEK_CUR) else ""

    def begin_again(self, problem: str) -> None:
        """Read the file that has this name now from its first line."""
        descriptor = open_log(self.path)
        os.close(self.descriptor)
        self.descriptor = descriptor
        self._growing = Growing(self._index)
        self._problem = f"{problem} while it was followed; what was there before was reported before"


def follow(
    path: str,
    index: Index,
    *,
    timeout: float | None = None,
    appear: float = APPEAR,
    quiet: float = QUIET,
    waiting: Callable[[str], None] = lambda _message: None,
) -> Iterator[CondensedLog]:
    """Yield what the log says whenever something new is in it and its writer pauses; it ends with the writer.

    A file that is replaced or cut short (logrotate) is read from its new beginning, after its old end was reported.

    Args:
        path: a file, which need not be there yet, or `-` for standard input, which ends with its writer.
        index: the signatures whose literals are looked for.
        timeout: seconds without a new byte after which it ends; None to go on until it is interrupted.
        appear: seconds to wait for a file that is not there yet.
        quiet: seconds without a new byte that make a pause.
        waiting: told, in words, what it waits for.

    Raises:
        UserError: the file did not appear, cannot be read, or is no plain log.
    """
    log = _Log(path, index, os.dup(0) if path == "-" else _opened(path, appear, waiting))
    try:
        while not log.ended and (timeout is None or time.monotonic() - log.seen < timeout):
            new = log.read()
            if log.due(quiet):
                yield log.state()
            if new:
                continue
            if problem := log.replaced():
                while log.read():
                    pass
                if log.fresh:
                    yield log.state()
                log.begin_again(problem)
            elif log.regular:
                time.sleep(_POLL)
        if log.fresh:
            yield log.state()
    finally:
        os.close(log.descriptor)


def _opened(path: str, appear: float, waiting: Callable[[str], None]) -> int:
    deadline = time.monotonic() + appear
    if not os.path.exists(path):
        waiting(f"{path}: not there yet; waiting up to {appear:g} s for it")
    while not os.path.exists(path):
        left = deadline - time.monotonic()
        if left <= 0:
            raise UserError(f"{path}: did not appear within {appear:g} s; is the run started, and is this its log?")
        time.sleep(min(_POLL, left))
    if os.path.isdir(path):
        raise UserError(f"{path}: a directory; --follow needs one log")
    return open_log(path)
