"""The live table of a run in a terminal, and few plain lines where the output is a pipe or a file."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.controller.callbacks.words import RUN_VIEW, View, bar, doing, duration, footer, plain_line, trend
from rltrain.core.work import WorkFiles

ROWS = 10
TREND = 20
BAR_WIDTH = 12


class LiveConsole(Callback):
    """A table of the last steps that is drawn over itself, 80 columns wide; what stays is the last picture."""

    def __init__(self, console: Console, work: WorkFiles, view: View = RUN_VIEW) -> None:
        self._console, self._work, self._view = console, work, view
        self._rows: deque[StepRecord] = deque(maxlen=ROWS)
        self._curve: deque[float] = deque(maxlen=TREND)
        self._total = 0
        self._first = 0
        self._begin = time.monotonic()
        self._stage, self._stage_begin, self._validates = "", self._begin, False
        self._outcome = ""
        self._live: Live | None = None
        # Steps arrive in one thread, and a picture is drawn by another.
        self._lock = threading.Lock()

    def on_run_start(self, run: RunInfo) -> None:
        """Begin to draw."""
        self._total, self._first = run.total_steps, run.start_step
        self._begin = time.monotonic()
        self._live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=4, transient=False)
        self._live.start()

    def stage(self, name: str) -> None:
        """Say which stage the step is in."""
        self._work.begin(name)
        with self._lock:
            self._stage, self._stage_begin = name, time.monotonic()
            self._validates = name == "testing" or (self._validates and name != "step")

    def on_step_end(self, record: StepRecord) -> None:
        """Add the step to the table."""
        with self._lock:
            if (value := record.metrics.get(self._view.curve)) is not None:
                self._curve.append(value)
            self._rows.append(StepRecord(record.step, dict(record.metrics)))
            self._validates = False

    def on_run_end(self, outcome: str) -> None:
        """Leave the last picture standing."""
        self._outcome = outcome
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> RenderableType:
        with self._lock:
            table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
            for column in self._view.columns:
                table.add_column(column.title, justify="right", vertical="bottom", no_wrap=True, width=column.width)
            for record in self._rows:
                table.add_row(*(column.cell(record.step, record.metrics) for column in self._view.columns))
            latest: Mapping[str, float] = self._rows[-1].metrics if self._rows else {}
            heading, now = self._heading(), self._now()
        under = (Text(line, style="dim", no_wrap=True) for line in footer(latest))
        return Group(Text(heading, no_wrap=True, style="bold"), Text(now, no_wrap=True), table, *under)

    def _heading(self) -> str:
        step = self._rows[-1].step if self._rows else self._first
        done, spent = step - self._first, time.monotonic() - self._begin
        parts = [f"{bar(step / max(self._total, 1), BAR_WIDTH)} {step} of {self._total} steps"]
        if done > 0 and step < self._total:
            parts.append(f"{duration(spent / done * (self._total - step))} left")
        if self._curve:
            parts.append(f"{self._view.curve_name} {trend(self._curve)}")
        return " · ".join(parts)

    def _now(self) -> str:
        """What is done at this moment, and how far it is."""
        if self._outcome:
            return self._outcome
        words = doing(self._stage)
        if self._validates and self._stage != "testing":
            words = f"{doing('testing')}: {words}"
        counts = self._work.counts(self._stage)
        if counts is not None and counts[1]:
            words += f" {bar(counts[0] / counts[1], BAR_WIDTH)} {counts[0]}/{counts[1]}"
        return f"{words} {duration(time.monotonic() - self._stage_begin)}"


class PlainConsole(Callback):
    """A line for step 0, for each step with a validation, and for about one step in twenty."""

    def __init__(self, console: Console, view: View = RUN_VIEW) -> None:
        self._console, self._view = console, view
        self._total = 0

    def on_run_start(self, run: RunInfo) -> None:
        """Note how long the run is."""
        self._total = run.total_steps

    def on_step_end(self, record: StepRecord) -> None:
        """Print the step, if it is its turn."""
        every = max(1, self._total // 20)
        if record.step % every == 0 or self._view.validation in record.metrics:
            print_plain(self._console, plain_line(record.step, self._total, record.metrics, self._view))


def print_plain(console: Console, line: str) -> None:
    """Print LINE as it is: no markup, no wrapping."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
