"""The live table of a run in a terminal, and few plain lines where the output is a pipe or a file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainer.callbacks.base import Callback, RunInfo, StepRecord
from trainer.callbacks.words import COLUMNS, footer, plain_line, sparkline

ROWS = 10
TREND = 24


class LiveConsole(Callback):
    """A table of the last steps that is drawn over itself, 80 columns wide; what stays is the last picture."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: deque[StepRecord] = deque(maxlen=ROWS)
        self._rewards: deque[float] = deque(maxlen=TREND)
        self._validation: dict[int, float] = {}
        self._total = 0
        self._stage = ""
        self._begin = time.monotonic()
        self._first = 0
        self._live: Live | None = None

    def on_run_start(self, run: RunInfo) -> None:
        """Begin to draw."""
        self._total, self._first = run.total_steps, run.start_step
        self._begin = time.monotonic()
        self._live = Live(self._draw(), console=self._console, refresh_per_second=4, transient=False)
        self._live.start()

    def stage(self, name: str) -> None:
        """Say which stage the step is in."""
        self._stage = name
        self._update()

    def on_step_end(self, record: StepRecord) -> None:
        """Add the step to the table."""
        if (reward := record.metrics.get("critic/score/mean")) is not None:
            self._rewards.append(reward)
        if (value := record.metrics.get("val/reward/mean")) is not None:
            self._validation[record.step] = value
        self._rows.append(StepRecord(record.step, dict(record.metrics)))
        self._update()

    def on_run_end(self, outcome: str) -> None:
        """Leave the last picture standing."""
        self._stage = outcome
        if self._live is not None:
            self._update()
            self._live.stop()
            self._live = None

    def _update(self) -> None:
        if self._live is not None:
            self._live.update(self._draw())

    def _draw(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for column in COLUMNS:
            table.add_column(column.title, justify="right", no_wrap=True, width=column.width)
        for record in self._rows:
            table.add_row(*(column.cell(record.step, record.metrics) for column in COLUMNS))
        latest: Mapping[str, float] = self._rows[-1].metrics if self._rows else {}
        return Group(self._heading(), table, *(Text(line, style="dim", no_wrap=True) for line in footer(latest)))

    def _heading(self) -> Text:
        step = self._rows[-1].step if self._rows else self._first
        done = step - self._first
        spent = time.monotonic() - self._begin
        left = f", about {spent / done * (self._total - step):.0f} s left" if done > 0 and step < self._total else ""
        width = 16
        filled = round(width * step / max(self._total, 1))
        bar = "━" * filled + "╌" * (width - filled)
        text = f"{bar} step {step}/{self._total}{left}  {sparkline(self._rewards)}  {self._stage}"
        return Text(text, no_wrap=True, overflow="crop", style="bold")


class PlainConsole(Callback):
    """A line for step 0, for each step with a validation, and for about one step in twenty."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0

    def on_run_start(self, run: RunInfo) -> None:
        """Note how long the run is."""
        self._total = run.total_steps

    def on_step_end(self, record: StepRecord) -> None:
        """Print the step, if it is its turn."""
        every = max(1, self._total // 20)
        if record.step % every == 0 or "val/reward/mean" in record.metrics:
            print_plain(self._console, plain_line(record.step, self._total, record.metrics))


def print_plain(console: Console, line: str) -> None:
    """Print LINE as it is: no markup, no wrapping."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
