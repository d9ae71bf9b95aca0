"""Saves checkpoints, and knows which of them was the best at validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.core.clock import Clock
from rltrain.records.checkpoints import CheckpointStore, Write

BEST_BY = "val/reward/mean"


class SaveCheckpoints(Callback):
    """Every `trainer.save_freq` steps and after the last one, or never; after the metrics of the step are on disk."""

    def __init__(
        self,
        store: CheckpointStore,
        write: Write,
        state: Callable[[], dict[str, Any]],
        clock: Clock,
        best_by: str = BEST_BY,
    ) -> None:
        """Hold STORE.

        Args:
            store: of the run.
            write: fills a directory with what the workers hold.
            state: what the controller holds.
            clock: of the run.
            best_by: metric by which a checkpoint is the best: the highest one, or the lowest of a loss.
        """
        self._store, self._write, self._state, self._clock = store, write, state, clock
        self._best_by, self._sign = best_by, -1.0 if best_by.endswith("/loss") else 1.0
        self._frequency = -1
        self._last_step = 0
        self.best: dict[str, float] | None = None
        self.saved_step: int | None = None

    def on_run_start(self, run: RunInfo) -> None:
        """Note how often."""
        self._frequency, self._last_step = run.config.trainer.save_freq, run.total_steps

    def on_step_end(self, record: StepRecord) -> None:
        """Save, if it is the step's turn."""
        if self._frequency < 0 or record.before_training:
            return
        if record.step % self._frequency and record.step != self._last_step:
            return
        value = record.metrics.get(self._best_by)
        if value is not None and (self.best is None or self._sign * value > self._sign * self.best["value"]):
            self.best = {"step": record.step, "value": value}
        self.save(record.step)

    def save(self, step: int) -> None:
        """Save the checkpoint of STEP now.

        Raises:
            RunFailure: it cannot be written.
        """
        with self._clock.stage("save_checkpoint"):
            self._store.save(step, {"step": step, "best": self.best, **self._state()}, self._write)
            self._store.drop_old(int(self.best["step"]) if self.best else None)
        self.saved_step = step
