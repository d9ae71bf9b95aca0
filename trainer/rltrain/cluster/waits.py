"""What the controller waits for, and how a signal or the watchdog reaches it there."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rltrain.core.errors import RunFailure


@dataclass
class Waiting:
    """One wait in progress."""

    doing: str
    """In words, such as "updating the actor"."""
    left: list[str]
    """Who has not answered: "train.update_actor of rank 1"."""
    since: float = field(default_factory=time.monotonic)

    def sentence(self) -> str:
        """Who waits for whom, and since when."""
        seconds = time.monotonic() - self.since
        return f"{self.doing}: the controller has waited {seconds:.0f} s for {', '.join(self.left)}"


@dataclass
class Beat:
    """The last sign of progress."""

    what: str
    at: float


class Waits:
    """The controller's waits. Other threads and signal handlers `interrupt` them; the waits call `check`."""

    def __init__(self) -> None:
        self.current: Waiting | None = None
        self.last_beat = Beat("the start", time.monotonic())
        self.watch: Callable[[], object] = lambda: None
        """Gives another value whenever a worker has come further in a call that it has not answered yet."""
        self.meanwhile: Callable[[], None] = _nothing
        """Called several times a second while the controller waits for workers' answers or rewards; it waits for
        nothing."""
        self.stop_asked_at: float | None = None
        """When a signal first asked the run to stop, by the monotonic clock."""
        self._seen: object = None
        self._pending: Exception | None = None
        self._shields = 0

    def beat(self, what: str) -> None:
        """Note that WHAT has been reached."""
        self.last_beat = Beat(what, time.monotonic())

    def look(self) -> None:
        """Beat, if a worker has come further since last looked."""
        seen = self.watch()
        if seen != self._seen:
            self._seen = seen
            self.beat("a piece of a worker's work")

    def interrupt(self, error: Exception) -> None:
        """Have the next `check` raise ERROR. The first error stands until it has been raised."""
        if self._pending is None or isinstance(error, RunFailure):
            self._pending = error

    @contextmanager
    def shielded(self) -> Generator[None]:
        """Let no signal end a wait in the block: what has begun there is finished. A stall still ends it."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

    @contextmanager
    def unshielded(self) -> Generator[None]:
        """Within `shielded`: what in the block waits may be dropped."""
        shields, self._shields = self._shields, 0
        try:
            yield
        finally:
            self._shields = shields

    @contextmanager
    def undisturbed(self) -> Generator[None]:
        """Do nothing else while the controller waits in the block."""
        before, self.meanwhile = self.meanwhile, _nothing
        try:
            yield
        finally:
            self.meanwhile = before

    @property
    def is_interrupted(self) -> bool:
        """Whether an interruption has not been noticed yet."""
        return self._pending is not None

    def check(self) -> None:
        """Raise what was handed to `interrupt`, once: afterwards the run may still save what it has.

        Raises:
            Interrupted: a signal came.
            RunFailure: the watchdog found a stall.
        """
        error = self._pending
        if error is None or (self._shields and not isinstance(error, RunFailure)):
            return
        self._pending = None
        raise error

    @contextmanager
    def waiting(self, doing: str, left: list[str]) -> Generator[Waiting]:
        """Show this wait to the watchdog for the time of the block."""
        around, self.current = self.current, Waiting(doing, left)
        try:
            yield self.current
        finally:
            self.current = around


def _nothing() -> None:
    """There is nothing else to do."""


Say = Callable[[str], None]
"""Prints a line of progress for the user."""


def silent(_line: str) -> None:
    """Print nothing."""
