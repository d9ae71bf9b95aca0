"""Start-up and other long stages: a moving line in a terminal, one plain line each in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Stages:
    """Named stages one after the other."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None

    @contextmanager
    def stage(self, words: str) -> Iterator[None]:
        """Show WORDS and the time that has passed while the block runs, and what it took when it is done."""
        begin = time.monotonic()
        if self._console.is_terminal:
            with self._bar() as bar:
                bar.add_task(words, total=None)
                yield
        else:
            yield
        self.say(f"{words}: {time.monotonic() - begin:.1f} s")

    def say(self, line: str) -> None:
        """Print one line as it is."""
        console = self._progress.console if self._progress is not None else self._console
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def _bar(self) -> Iterator[Progress]:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as progress:
            self._progress = progress
            try:
                yield progress
            finally:
                self._progress = None
