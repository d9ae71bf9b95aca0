"""Where the time of a step goes: named stages, and who may listen to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Clock:
    """Collects seconds by stage; `taken()` empties it, once a step."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call LISTENER with a stage's name when it begins."""
        self._listeners.append(listener)

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Count the time of the block as `timing_s/NAME`; blocks may nest."""
        for listener in self._listeners:
            listener(name)
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - begin)

    @contextmanager
    def apart(self, name: str) -> Generator[None]:
        """Count the block as `timing_s/NAME` alone: the stages in it are announced, but are not the step's."""
        before, self._seconds = self._seconds, {}
        try:
            with self.stage(name):
                yield
        finally:
            before[name] = before.get(name, 0.0) + self._seconds[name]
            self._seconds = before

    def add(self, name: str, seconds: float) -> None:
        """Count SECONDS, measured elsewhere, as part of the stage NAME."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def taken(self) -> dict[str, float]:
        """The seconds by stage since the last call, as `timing_s/NAME`."""
        taken = {f"timing_s/{name}": seconds for name, seconds in self._seconds.items()}
        self._seconds.clear()
        return taken
