"""Ctrl-C, SIGTERM, a lost terminal: the first asks the run to stop in order, the second ends it at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from types import FrameType, TracebackType
from typing import Any

from rltrain.cluster.waits import Say, Waits, silent

EXIT_CODE = 130
_LAST_WORDS_S = 1.0


def stop_signals() -> list[signal.Signals]:
    """Those that end a run: a terminal that is lost, too, but under `nohup`."""
    found = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    return [number for number in found if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


class Interrupted(Exception):
    """A signal asked the run to stop; raised in a wait, whose call is dropped."""


class StopSignals(AbstractContextManager["StopSignals"]):
    """Handles SIGINT, SIGTERM and SIGHUP for the time of a block; for the main thread.

    Args:
        waits: the waits to interrupt.
        end_now: ends all processes of the run without delay; called on the second signal, before exit 130.
        say: prints a line.
    """

    def __init__(self, waits: Waits, end_now: Callable[[], None], say: Say = silent) -> None:
        self.requested = False
        """Whether the run has been asked to stop; the loop looks at it between steps."""
        self._waits = waits
        self._end_now = end_now
        self._say = say
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._handle) for number in stop_signals()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.requested and number == signal.SIGHUP:
            return  # the kernel and the shell both report a lost terminal
        if self.requested:
            self._say_aside(f"{name} again: ending at once").join(_LAST_WORDS_S)
            self._end_now()
            os._exit(EXIT_CODE)
        self.requested = True
        self._say_aside(f"{name}: stopping in order; once more ends at once")
        current = self._waits.current
        self._waits.interrupt(Interrupted(f"stopped by {name}" + (f" ({current.doing})" if current else "")))

    def _say_aside(self, line: str) -> Thread:
        """Print LINE from a thread: the signal may have come in the middle of a print, which takes no second one."""
        thread = Thread(target=self._say, args=(line,), daemon=True)
        thread.start()
        return thread


@contextmanager
def at_once_on_signals(end_now: Callable[[], None]) -> Generator[None]:
    """In the block, while the run is already ending, SIGINT and SIGTERM end all at once; a lost terminal does not."""

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            return
        end_now()
        os._exit(EXIT_CODE)

    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
