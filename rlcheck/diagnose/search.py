"""The texts of a log's blocks, in the order of the blocks; a large log is looked through by a process on each core."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rlcheck.diagnose.blocks import Block
from rlcheck.diagnose.clean import strip_escapes
from rlcheck.diagnose.scan import Finder

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

_ALONE = 16 << 20
"""Bytes that this process looks through before others are worth their start; by then it knows what is rare."""
_BATCH = 1 << 20
"""Bytes that go to another process together."""
_MOST_HELPERS = 8

Found = tuple[Block, list[bytes], bytes]
"""A block, the texts in it, and the block without escapes if there are any."""


def usable_cores() -> int:
    """Return how many cores this process may use; 1 where it cannot be told, or processes cannot be forked safely."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


class Search:
    """Blocks go in one by one and come out in their order, some of them later than the next one goes in."""

    def __init__(self, finder: Finder, num_cores: int = 1) -> None:
        """Look with FINDER; with NUM_CORES above 1 in as many processes, at most eight."""
        self.finder = finder
        self._num_helpers = min(num_cores, _MOST_HELPERS) if num_cores > 1 else 0
        self._read = 0
        self._batch: list[Block] = []
        self._batch_bytes = 0
        self._idle: deque[_Helper] = deque()
        self._sent: deque[tuple[_Helper | None, list[Block]]] = deque()

    def push(self, block: Block) -> Iterator[Found]:
        """Take BLOCK; give those that are ready."""
        self._read += len(block.data)
        if self._num_helpers and self._read > _ALONE and threading.active_count() == 1:
            # No lock of another thread is held in what is forked.
            self._idle.extend(_helpers(self.finder, self._num_helpers))
            self._num_helpers = 0
        if not self._idle and not self._sent:
            yield (block, *self.finder.find(block.data))
            return
        self._batch.append(block)
        self._batch_bytes += len(block.data)
        if self._batch_bytes >= _BATCH:
            yield from self._send()

    def rest(self) -> Iterator[Found]:
        """Give every block that went in and did not come out yet."""
        if self._batch:
            yield from self._send()
        while self._sent:
            yield from self._first()

    def close(self) -> None:
        """End the other processes."""
        for helper in (*self._idle, *(helper for helper, _ in self._sent if helper)):
            helper.end()
        self._idle.clear()

    def _send(self) -> Iterator[Found]:
        # One that has not answered yet does not read: to send it more could leave both waiting for the other.
        while not self._idle and self._sent:
            yield from self._first()
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        helper = self._idle.popleft() if self._idle else None
        self._sent.append((helper if helper and helper.ask(self.finder.thrifty, batch) else None, batch))

    def _first(self) -> Iterator[Found]:
        helper, batch = self._sent.popleft()
        answers = helper.answer() if helper else None
        if helper and answers:
            self._idle.append(helper)
        for block, (found, num_new) in zip(
            batch, answers or map(self.finder.look, (block.data for block in batch)), strict=True
        ):
            self.finder.count(len(block.data), num_new)
            yield block, found, strip_escapes(block.data) if found else b""


class _Helper(NamedTuple):
    """Another process. One that was ended from outside answers nothing: its blocks are looked through here."""

    process: BaseProcess
    way: Connection

    def ask(self, thrifty: bool, blocks: Sequence[Block]) -> bool:
        try:
            self.way.send((thrifty, [block.data for block in blocks]))
        except OSError:
            return False
        return True

    def answer(self) -> list[tuple[list[bytes], int]] | None:
        try:
            return self.way.recv()
        except (EOFError, OSError):
            return None

    def end(self) -> None:
        self.way.close()
        self.process.kill()
        self.process.join()


def _helpers(finder: Finder, count: int) -> list[_Helper]:
    import multiprocessing  # few logs are so large

    context = multiprocessing.get_context("fork")
    found: list[_Helper] = []
    for _ in range(count):
        ours, theirs = context.Pipe()
        open_here = [helper.way for helper in found] + [ours]
        process = context.Process(target=_serve, args=(finder, theirs, open_here), daemon=True)
        try:
            process.start()
        except OSError:  # as many processes as the system allows
            ours.close()
            return found
        finally:
            theirs.close()
        found.append(_Helper(process, ours))
    return found


def _serve(finder: Finder, way: Connection, others: Sequence[Connection]) -> None:
    """Answer until the other end of WAY is closed; nothing here keeps OTHERS open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that asks ends this
    for other in others:
        other.close()
    try:
        while True:
            thrifty, blocks = way.recv()
            if thrifty:
                finder.be_thrifty()
            way.send([finder.look(block) for block in blocks])
    except (EOFError, OSError):
        os._exit(0)
