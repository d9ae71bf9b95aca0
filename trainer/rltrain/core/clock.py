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
        self._lap_began = time.perf_counter()

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call LISTENER with a stage's name when it begins."""
        self._listeners.append(listener)

    def announce(self, name: str) -> None:
        """Tell the listeners that NAME begins, and count nothing."""
        for listener in self._listeners:
            listener(name)

    def lap(self) -> float:
        """Seconds since the last call, or since the clock was made: nothing falls between two laps."""
        began, self._lap_began = self._lap_began, time.perf_counter()
        return self._lap_began - began

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Count the time of the block as `timing_s/NAME`; blocks may nest."""
        self.announce(name)
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
