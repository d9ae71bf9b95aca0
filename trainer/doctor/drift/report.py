"""What is known so far, told as it comes; and the stages of a start, told alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from trainer.progress import Done, Stages

Tell = Callable[[dict[str, Any]], None]
STARTING = "starting"
"""First word of stages in which processes start and models load: they may take long."""


class Report:
    """Fields of `rlcheck.facts.drift.DriftFacts`, as plain data.

    TELL is called with `{"stage": …}` before each part, and with `{"partial": …}` after it.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.found: dict[str, Any] = {"stages": [], "notes": []}

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Tell NAME, and note how long the block takes."""
        self._tell({"stage": name})
        begun = time.perf_counter()
        yield
        self.add(stages=[*self.found["stages"], {"name": name, "seconds": round(time.perf_counter() - begun, 3)}])

    def add(self, **values: Any) -> None:
        """Tell VALUES."""
        self.found.update(values)
        self._tell({"partial": values})

    def note(self, line: str) -> None:
        """Tell LINE, once."""
        if line not in self.found["notes"]:
            self.add(notes=[*self.found["notes"], line])


class StartStages(Stages):
    """What `start_crew` says of its stages goes to REPORT, and its lines to standard error."""

    def __init__(self, report: Report) -> None:
        super().__init__(Console(file=sys.stderr, highlight=False, soft_wrap=True))
        self._report = report

    @contextmanager
    def stage(self, words: str, total: int | None = None) -> Generator[Done]:
        """Tell WORDS, and note what the block takes."""
        name = words if words.startswith(STARTING) else f"{STARTING}: {words}"
        with self._report.stage(name), super().stage(words, total) as done:
            yield done
