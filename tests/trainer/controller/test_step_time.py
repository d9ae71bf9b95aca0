"""The time of a step: everything between two step ends, and nothing twice."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from rltrain.controller.callbacks import Callback, Callbacks, StepRecord
from rltrain.controller.callbacks.step_time import StepTime
from rltrain.core.clock import Clock
from tests.trainer.controller.build import batch, run


class Slow(Callback):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_step_end(self, record: StepRecord) -> None:
        time.sleep(self._seconds)


def finished(step: int) -> StepRecord:
    return StepRecord(step, {"perf/total_num_tokens": 12.0}, batch())


def test_what_comes_before_the_record_and_what_came_after_the_last_one_count(tmp_path: Path) -> None:
    clock = Clock()
    callbacks = Callbacks([Slow(0.05), StepTime(clock), Slow(0.1)])
    callbacks.on_run_start(run(tmp_path, n_gpus_per_node=2))
    begin = time.perf_counter()
    callbacks.on_step_end(StepRecord(0, {"val/reward/mean": 0.5}))
    records = [finished(1), finished(2), finished(3)]
    for record in records:
        callbacks.on_step_end(record)
    whole = time.perf_counter() - begin
    times = [record.metrics["timing_s/step"] for record in records]
    assert all(seconds >= 0.15 for seconds in times)
    # Before the first: step 0's record; after the last: what follows its record.
    assert sum(times) <= whole - 0.15
    for record in records:
        assert record.metrics["perf/time_per_step"] == record.metrics["timing_s/step"]
        assert record.metrics["perf/throughput"] == pytest.approx(12 / record.metrics["timing_s/step"] / 2)


def test_step_0_has_no_time_of_its_own(tmp_path: Path) -> None:
    timed = StepTime(Clock())
    timed.on_run_start(run(tmp_path))
    before = StepRecord(0, {})
    timed.on_step_end(before)
    assert before.metrics == {}


def test_laps_leave_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: Any = itertools.count()
    monkeypatch.setattr("rltrain.core.clock.time.perf_counter", lambda: float(next(ticks)))
    clock = Clock()
    assert clock.lap() == 1.0
    with clock.stage("gen"):
        pass
    assert clock.lap() == 3.0
