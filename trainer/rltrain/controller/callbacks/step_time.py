"""The time of a step, from step end to step end, and the speed that follows from it."""

from __future__ import annotations

from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.core.clock import Clock


class StepTime(Callback):
    """Adds `timing_s/step`, `perf/time_per_step` and `perf/throughput`; stands where all else of a record is complete.

    A step's time begins where the record of the step before was complete: what came after that (its files, its
    checkpoint) counts here, as do validation and audit. The times of all steps add up to that of the run.
    `perf/throughput` is tokens (prompts and responses) per second and training rank, as in verl.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._num_ranks = 1

    def on_run_start(self, run: RunInfo) -> None:
        """The first step begins."""
        trainer = run.config.trainer
        self._num_ranks = trainer.nnodes * (trainer.n_gpus_per_node or 1)
        self._clock.lap()

    def on_step_end(self, record: StepRecord) -> None:
        """Add the metrics; step 0 only ends."""
        seconds = self._clock.lap()
        if record.before_training:
            return
        record.metrics["timing_s/step"] = record.metrics["perf/time_per_step"] = seconds
        record.metrics["perf/throughput"] = record.metrics["perf/total_num_tokens"] / (seconds * self._num_ranks)
