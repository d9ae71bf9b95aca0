"""Ctrl-C, SIGTERM, a lost terminal: the first asks the run to stop in order, the second ends it at once."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from types import FrameType, TracebackType
from typing import Any

from rltrain.cluster.shield import STOPPING
from rltrain.cluster.waits import Say, Waits, silent

EXIT_CODE = 130
REPEATED_S = 1.0
"""Signals that come closer are one request: `timeout`, srun and Slurm signal a process, and then its group again."""
_LAST_WORDS_S = 1.0


def stop_signals() -> list[signal.Signals]:
    """Those that end a run: a terminal that is lost, too, but under `nohup`."""
    return [number for number in STOPPING if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


def interrupt_on_signals() -> None:
    """From now on all of them do what Ctrl-C does, once: KeyboardInterrupt. Repetitions within a second are none."""
    last = -math.inf

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > REPEATED_S:
            raise KeyboardInterrupt

    for number in stop_signals():
        signal.signal(number, handle)


class Interrupted(Exception):
    """A signal asked the run to stop; raised in a wait, whose call is dropped."""


class StopSignals(AbstractContextManager["StopSignals"]):
    """Handles SIGINT, SIGTERM and SIGHUP for the time of a block; for the main thread.

    Args:
        waits: the waits to interrupt.
        end_now: ends all processes of the run without delay; called on the second request, before exit 130.
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
        if self.requested:
            if _is_repeated(self._waits, number):
                return
            self._say_aside(f"{name} again: ending at once").join(_LAST_WORDS_S)
            self._end_now()
            os._exit(EXIT_CODE)
        self._waits.stop_asked_at = time.monotonic()
        self.requested = True
        self._say_aside(f"{name}: stopping in order; once more ends at once")
        current = self._waits.current
        self._waits.interrupt(Interrupted(f"stopped by {name}" + (f" ({current.doing})" if current else "")))

    def _say_aside(self, line: str) -> Thread:
        """Print LINE from a thread: the signal may have come in the middle of a print, which takes no second one."""
        thread = Thread(target=self._say, args=(line,), daemon=True)
        thread.start()
        return thread


def _is_repeated(waits: Waits, number: int) -> bool:
    """Whether a signal is no second request: both kernel and shell report a lost terminal, and see REPEATED_S."""
    asked = waits.stop_asked_at
    return number == signal.SIGHUP or (asked is not None and time.monotonic() - asked < REPEATED_S)


@contextmanager
def at_once_on_signals(waits: Waits, end_now: Callable[[], None], say: Say = silent) -> Generator[None]:
    """In the block the run is ending already: the first request to stop changes nothing, the second ends it at once."""

    def handle(number: int, _frame: FrameType | None) -> None:
        if waits.stop_asked_at is None:
            waits.stop_asked_at = time.monotonic()
            line = f"{signal.Signals(number).name}: the run is ending already; once more ends at once"
            Thread(target=say, args=(line,), daemon=True).start()
        elif not _is_repeated(waits, number):
            end_now()
            os._exit(EXIT_CODE)

    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
