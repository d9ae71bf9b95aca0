"""Metrics in the dictionaries that trainers print: those of Hugging Face's Trainer (TRL, Unsloth), and slime's.

Sources: transformers/trainer_callback.py (ProgressCallback.on_log and PrinterCallback.on_log: a dictionary without a
step, floats as text since 5.0); slime/backends/megatron_utils/model.py and slime/observability/train_metric_utils.py
at THUDM/slime@624b824 (`step 3: {…}`, `rollout 3: {…}`, `perf 3: {…}`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from rlcheck.measure.run.texts import Record

_DICTIONARY = re.compile(rb"\{'[^{}]{1,60000}\}")
_NUMBERED = re.compile(rb"(?<![\w/])(?:step|rollout|perf|eval) (\d{1,15}): $")
_BAR = re.compile(rb"(\d{1,12})/(\d{1,12}) \[")
_PAIR = re.compile(
    r"'(?P<name>[^'\s]{1,200})': (?:(?:np\.\w{1,20}|tensor)\()?'?"
    r"(?P<value>[-+]?(?:nan|inf|[\d.]{1,40}(?:e[-+]?\d{1,4})?))'?\)?(?=[,}])",
    re.IGNORECASE,
)
_EPOCH = "epoch"
_SUMMARY = "train_runtime"
_EVALUATION = "eval_"


@dataclass
class _Entry:
    """A dictionary without a step. `order`: its line; `bar`: step and total of the progress bar before it."""

    order: int
    values: Record
    bar: tuple[int, int] | None

    @property
    def evaluated(self) -> bool:
        return any(name.startswith(_EVALUATION) for name in self.values)


@dataclass
class Printed:
    """Takes the lines of a log, and gives the metrics of the last run in it."""

    notes: list[str] = field(default_factory=list[str])
    _numbered: list[tuple[int, Record]] = field(default_factory=list[tuple[int, Record]])
    _entries: list[_Entry] = field(default_factory=list[_Entry])
    _bar: tuple[int, int] | None = None

    def take(self, line: bytes, order: int) -> bool:
        """Take a LINE, the ORDER-th of the log; False if it holds no metrics."""
        at, any_found = 0, False
        for found in _DICTIONARY.finditer(line) if b"{'" in line else ():
            self._see_bar(line[at : found.start()])
            any_found = self._take(found, line[max(at, found.start() - 40) : found.start()], order) or any_found
            at = found.end()
        self._see_bar(line[at:])
        return any_found

    def records(self) -> Iterator[tuple[int, Record]]:
        """Each record with its step, and its place in the log."""
        yield from self._numbered
        run = self._last_run()
        steps = _steps_of(run)
        if run and steps is None:
            self.notes.append("the log names no step: lines of metrics were counted, so that steps are their numbers")
        count = 0
        for place, entry in enumerate(run):
            count += not entry.evaluated
            step = steps[place] if steps is not None else max(count, 1)
            yield entry.order, {**entry.values, "step": step}

    def _see_bar(self, text: bytes) -> None:
        for found in _BAR.finditer(text) if b"/" in text else ():
            self._bar = int(found[1]), int(found[2])

    def _take(self, found: re.Match[bytes], before: bytes, order: int) -> bool:
        pairs = _PAIR.finditer(found[0].decode("utf-8", errors="replace"))
        values: Record = {pair["name"]: _number(pair["value"]) for pair in pairs}
        numbered = _NUMBERED.search(before)
        if numbered is not None and any("/" in name for name in values):
            self._numbered.append((order, {**values, "step": int(numbered[1])}))
        elif _EPOCH in values and len(values) > 1:
            if _SUMMARY not in values:
                self._entries.append(_Entry(order, values, self._bar))
        else:
            return False
        return True

    def _last_run(self) -> list[_Entry]:
        """The entries since another run began."""
        starts = [0] + [place for place in range(1, len(self._entries)) if self._begins(place)]
        starts = [start for start in starts if not all(one.evaluated for one in self._entries[start:])] or [0]
        if len(starts) > 1:
            self.notes.append(f"the log holds {len(starts)} runs; the last was read")
        return self._entries[starts[-1] :]

    def _begins(self, place: int) -> bool:
        """Whether the entry at PLACE is of another run: the epoch is back at the first, or the bar has another total.

        The bar of an evaluation has another total as well, but then that of the training comes again.
        """
        first, one, other = self._entries[0], self._entries[place - 1], self._entries[place]
        if other.values[_EPOCH] <= first.values[_EPOCH] < one.values[_EPOCH]:
            return True
        if one.bar is None or other.bar is None or one.bar[1] == other.bar[1] or other.bar[0] > one.bar[0]:
            return False
        before = {entry.bar[1] for entry in self._entries[:place] if entry.bar}
        return before.isdisjoint(entry.bar[1] for entry in self._entries[place:] if entry.bar)


def _steps_of(run: list[_Entry]) -> list[int] | None:
    """The steps that the progress bar says, if it is one bar that goes on from entry to entry; else None.

    An evaluation, which has a bar of its own, has the step of the entry before it.
    """
    logged = [entry.bar for entry in run if not entry.evaluated]
    bars = [bar for bar in logged if bar is not None]
    steps = [step for step, _ in bars]
    if not bars or len(bars) != len(logged) or len({total for _, total in bars}) != 1:
        return None
    if any(one >= other for one, other in pairwise(steps)):
        return None
    found: list[int] = []
    for entry in run:
        found.append(steps.pop(0) if not entry.evaluated else found[-1] if found else steps[0])
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
