"""Say on standard error what a command waits for, when somebody is looking."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from dataclasses import dataclass, field

_TICK_S = 0.5
_SHOWN = 4


def show_waiting(sections: tuple[str, ...]) -> None:
    """Say on standard error what is still awaited, when somebody is looking."""
    if sys.stderr.isatty():
        line = f"waiting for: {', '.join(sections)}"
        # A longer line would go on below, where it cannot be taken away.
        sys.stderr.write(f"\r\x1b[K{line[: max(20, shutil.get_terminal_size().columns - 1)]}")
        sys.stderr.flush()


def clear_line() -> None:
    """Take away the line that says what is awaited."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


@dataclass
class Waiting:
    """Says on standard error, twice a second and only to a terminal, what the command waits for, and for how long."""

    what: tuple[str, ...] = ()
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Waiting:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._tick, daemon=True, name="waiting")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * _TICK_S)
            clear_line()

    def on(self, *what: str) -> None:
        """What is awaited from now on."""
        self.what = what

    def on_names(self, names: tuple[str, ...]) -> None:
        """What is awaited from now on, as a list; a long one is cut."""
        self.what = (*names[:_SHOWN], f"{len(names) - _SHOWN} more") if len(names) > _SHOWN else names

    def _tick(self) -> None:
        started = time.monotonic()
        while not self._stop.wait(_TICK_S):
            if self.what:
                show_waiting((*self.what, f"{time.monotonic() - started:.0f} s"))
