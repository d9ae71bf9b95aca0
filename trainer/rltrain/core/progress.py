"""Start-up and other long stages: a moving line in a terminal, one plain line each in a pipe."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO, Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

Done = Callable[[int], None]
"""Tells how many pieces of a stage are done."""


def screen() -> Console:
    """Where a run is watched."""
    return Console(file=cast("IO[str]", _Patient(sys.stdout)), highlight=False, soft_wrap=True)


class _Patient:
    """A stream whose reader may go (`| head`, a lost connection): the run goes on, and says no more.

    Rich would end the program, and with it hours of training.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write TEXT for whoever is there."""
        with self._to_nobody_at_last():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        with self._to_nobody_at_last():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _to_nobody_at_last(self) -> Generator[None]:
        try:
            yield
        except OSError:
            nobody = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nobody, self._stream.fileno())
            os.close(nobody)


class Stages:
    """Named stages one after the other."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._inside = False

    @contextmanager
    def stage(self, words: str, total: int | None = None) -> Generator[Done]:
        """Show WORDS and the time that has passed while the block runs, and what it took when it is done.

        Args:
            words: what is done.
            total: pieces, of which the block tells how many are done; null: nobody knows how far it is.
        """
        begin, self._inside = time.monotonic(), True
        try:
            if self._console.is_terminal:
                with self._bar(counts=total is not None) as bar:
                    task = bar.add_task(words, total=total)
                    yield lambda done: bar.update(task, completed=done)
            else:
                yield _ignore
        finally:
            self._inside = False
        self.say(f"{words}: {time.monotonic() - begin:.1f} s")

    def say(self, line: str) -> None:
        """Print one line as it is."""
        console = self._progress.console if self._progress is not None else self._console
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    def still(self, line: str) -> None:
        """Print LINE, which says that a wait goes on: in a pipe while a stage lasts. A bar or table says it anyway."""
        if self._inside and not self._console.is_terminal:
            self.say(line)

    @contextmanager
    def _bar(self, *, counts: bool) -> Generator[Progress]:
        columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(bar_width=20)]
        columns += [MofNCompleteColumn()] if counts else []
        with Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True) as progress:
            self._progress = progress
            try:
                yield progress
            finally:
                self._progress = None


def _ignore(_done: int) -> None:
    """Nobody looks."""
