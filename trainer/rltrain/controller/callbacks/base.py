"""What a callback is told, and when."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.core.batch import Batch
from rltrain.core.metrics import Metrics
from rltrain.records.run_dir import RunDir


@dataclass(frozen=True)
class RunInfo:
    """One run, as its callbacks know it."""

    config: RunConfig
    directory: RunDir
    total_steps: int
    start_step: int


@dataclass
class StepRecord:
    """One finished step. Callbacks run in order, and each may add to it."""

    step: int
    metrics: Metrics
    batch: Batch | None = None
    """What the step learned from; None for step 0, before training, and in supervised training."""
    audit: dict[str, Any] = field(default_factory=dict[str, Any])
    stopped: bool = False
    """A signal ended the step's validation: engines may still be at work on it."""

    @property
    def before_training(self) -> bool:
        """True for step 0."""
        return self.step == 0


class Callback:
    """Does nothing at every occasion; a subclass takes those that it wants."""

    def on_run_start(self, run: RunInfo) -> None:
        """Before the first step."""

    def on_step_begin(self, step: int) -> None:
        """Before each step."""

    def on_step_end(self, record: StepRecord) -> None:
        """After each step, and once before training with step 0."""

    def on_run_end(self, outcome: str) -> None:
        """After the last step, however the run ended: `finished`, `interrupted` or `failed`."""


class Callbacks(Callback):
    """Several callbacks in order."""

    def __init__(self, members: Sequence[Callback]) -> None:
        self._members = tuple(members)

    def on_run_start(self, run: RunInfo) -> None:
        """Pass it on, in order."""
        for member in self._members:
            member.on_run_start(run)

    def on_step_begin(self, step: int) -> None:
        """Pass it on, in order."""
        for member in self._members:
            member.on_step_begin(step)

    def on_step_end(self, record: StepRecord) -> None:
        """Pass it on, in order."""
        for member in self._members:
            member.on_step_end(record)

    def on_run_end(self, outcome: str) -> None:
        """Pass it on, in order; to all of them, even if one raises (a full disk)."""
        with ExitStack() as stack:
            for member in reversed(self._members):
                stack.callback(member.on_run_end, outcome)
