"""How much of the time engines and training worked, where both do at once."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from rltrain.core.metrics import Metrics


class Occupancy:
    """Shares of the time from one step's answers to the next one's."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._waited_s = self._rested_s = 0.0
        self._resting_since: float | None = None

    def engines(self, are_busy: bool) -> None:
        """From now on they have something to answer, or nothing."""
        now = time.monotonic()
        if are_busy and self._resting_since is not None:
            self._rested_s += now - self._resting_since
        self._resting_since = None if are_busy else self._resting_since or now

    @contextmanager
    def waiting(self) -> Generator[None]:
        """A block in which nothing is done but wait for answers."""
        begun = time.monotonic()
        yield
        self._waited_s += time.monotonic() - begun

    def taken(self) -> Metrics:
        """The shares since the last call."""
        now = time.monotonic()
        if self._resting_since is not None:
            self._rested_s, self._resting_since = self._rested_s + now - self._resting_since, now
        whole = max(now - self._begun, 1e-9)
        busy = max(whole - self._rested_s, 1e-9)
        found = {
            "perf/generation_overlap": max(1 - self._waited_s / busy, 0.0),
            "perf/rollout_idle": min(self._rested_s / whole, 1.0),
            "perf/training_idle": min(self._waited_s / whole, 1.0),
        }
        self._begun, self._waited_s, self._rested_s = now, 0.0, 0.0
        return found
