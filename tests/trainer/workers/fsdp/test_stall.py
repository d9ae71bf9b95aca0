"""What of a device's collectives counts as time with other ranks. Its events are made up: no test machine has a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rltrain.core.spent import SPENT, Span
from rltrain.workers.fsdp import comm_timing


class Stream:
    """A stream whose events say at which of its seconds they were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(comm_timing, "_mark", lambda: self.now)
        monkeypatch.setattr(comm_timing, "_elapsed_s", lambda before, after: after - before)

    def spent(self, act: Callable[[], None]) -> Span:
        """ACT as a call, on a clock that is the stream's."""
        return SPENT.timed(act)[1]


def test_only_what_holds_up_the_computing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is ahead waits the same second in each of three reductions; it stands still for one of them."""
    stream, stall = Stream(monkeypatch), comm_timing.Stall()
    monkeypatch.setattr("rltrain.core.spent.time.perf_counter", lambda: stream.now)

    def act() -> None:
        for _ in range(3):
            stream.now += 2.0  # a layer
            stall.begin()
        stream.now += 1.0  # the wait for the last reduction
        stall.end()
        stream.now += 0.5  # the optimizer
        stall.end()

    span = stream.spent(act)
    assert (span.wall_s, span.together_s, span.own_s) == (7.5, 1.0, 6.5)


def test_between_two_calls_nothing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, stall = Stream(monkeypatch), comm_timing.Stall()
    monkeypatch.setattr("rltrain.core.spent.time.perf_counter", lambda: stream.now)
    stream.spent(stall.begin)
    stream.now += 100.0

    def act() -> None:
        stream.now += 1.0
        stall.end()

    assert stream.spent(act).together_s == 0.0
