"""The stages of a start, told as those of a measurement."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console

from rlcheck.facts.drift import DriftFacts
from rltrain.core.progress import Done, Stages
from rltrain.measure.report import Report as MeasureReport

Report = MeasureReport[DriftFacts]
STARTING = "starting"
"""First word of stages in which processes start and models load: they may take long."""


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
