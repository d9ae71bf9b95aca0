"""Where the time of a worker's calls goes: its own work, collectives with other ranks, waiting for a processor.

A process holds one worker, so there is one `SPENT` in it. What is counted costs two clock readings a collective.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

_SCHEDSTAT = "/proc/thread-self/schedstat"
_THREAD = threading.local()


@dataclass
class Span:
    """Seconds of calls of one method on one rank.

    `together_s`: in collectives, which hold the wait for slower ranks and the transfer itself. `cpu_s`: processor time
    of the process. `queued_s`: outside of collectives, the calling thread was ready to run and had no processor
    (Linux; else 0). `longest_s`:
    of a single call.
    """

    calls: int = 0
    wall_s: float = 0.0
    together_s: float = 0.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    longest_s: float = 0.0

    @property
    def own_s(self) -> float:
        """Time outside of collectives, the wait for a processor included."""
        return max(self.wall_s - self.together_s, 0.0)

    def add(self, other: Span) -> None:
        """Count OTHER as well."""
        self.calls += other.calls
        self.wall_s += other.wall_s
        self.together_s += other.together_s
        self.cpu_s += other.cpu_s
        self.queued_s += other.queued_s
        self.longest_s = max(self.longest_s, other.longest_s)


@dataclass(frozen=True)
class Answered:
    """What a worker's method returned, the time that it took, and what the worker has noted besides."""

    value: Any
    span: Span
    notes: tuple[dict[str, Any], ...] = ()


class Spent:
    """Collects the time of the call in hand."""

    def __init__(self) -> None:
        self._together_s = self._queued_together_s = 0.0
        self._later: list[Callable[[], float]] = []
        self.number = 0
        """Of the call in hand."""

    def later(self, seconds: Callable[[], float]) -> None:
        """Count what SECONDS returns at the end of the call as time in collectives: of a device that runs behind."""
        self._later.append(seconds)

    def add(self, seconds: float) -> None:
        """Count SECONDS as time in collectives."""
        self._together_s += seconds

    @contextmanager
    def together(self) -> Generator[None]:
        """A block that is a collective, and blocks until it is done."""
        begun, queued = time.perf_counter(), _queued_s()
        try:
            yield
        finally:
            self.add(time.perf_counter() - begun)
            self._queued_together_s += _queued_s() - queued

    def timed(self, act: Callable[[], Any]) -> tuple[Any, Span]:
        """What ACT returns, and where its time went."""
        self._together_s, self._queued_together_s, self._later = 0.0, 0.0, []
        self.number += 1
        begun, cpu, queued = time.perf_counter(), time.process_time(), _queued_s()
        value = act()
        wall = time.perf_counter() - begun
        together = self._together_s + sum(seconds() for seconds in self._later)
        self._later = []
        alone = max(_queued_s() - queued - self._queued_together_s, 0.0)
        return value, Span(1, wall, min(together, wall), time.process_time() - cpu, alone, wall)


SPENT = Spent()


def _queued_s() -> float:
    """Seconds for which this thread was ready to run and did not; 0 where the kernel does not say."""
    with suppress(OSError, ValueError, IndexError):
        place: int | None = getattr(_THREAD, "schedstat", None)
        if place is None:
            place = _THREAD.schedstat = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        return int(os.pread(place, 128, 0).split()[1]) / 1e9
    return 0.0
