"""Signals that end a run, at the worst moment."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rltrain.cluster import teardown
from rltrain.cluster.teardown import Interrupted, StopSignals, at_once_on_signals, interrupt_on_signals
from rltrain.cluster.waits import Waits


class _CtrlCAtTheFirstWrite(io.RawIOBase):
    """A file during whose first write the user presses Ctrl-C."""

    def __init__(self) -> None:
        self.held = b""

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self.held:
            os.kill(os.getpid(), signal.SIGINT)
        self.held += bytes(data)
        return len(data)


def test_ctrl_c_in_the_middle_of_a_print() -> None:
    """Output that is being written takes no second print: that of the signal waits its turn."""
    raw, waits = _CtrlCAtTheFirstWrite(), Waits()
    out = io.TextIOWrapper(io.BufferedWriter(raw), write_through=True)
    with StopSignals(waits, lambda: None, lambda line: print(line, file=out, flush=True)) as stop:
        print("step 3", file=out, flush=True)
        deadline = time.monotonic() + 10
        while b"stopping in order" not in raw.held:
            assert time.monotonic() < deadline, raw.held
            time.sleep(0.01)
    assert stop.requested
    assert raw.held.startswith(b"step 3\n")
    with pytest.raises(Interrupted, match=r"^stopped by SIGINT$"):
        waits.check()


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have ended this process."""
    found: list[Any] = []
    monkeypatch.setattr(os, "_exit", found.append)
    return found


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in teardown.STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def pass_a_second(waits: Waits) -> None:
    """As if the first signal had come so long ago that the next is none of its repetitions."""
    assert waits.stop_asked_at is not None
    waits.stop_asked_at -= teardown.REPEATED_S + 0.1


def test_signals_within_a_second_are_one_request(exits: list[Any]) -> None:
    """`timeout` signals its command and then its group, Slurm the steps of a job and srun its tasks."""
    waits = Waits()
    with StopSignals(waits, lambda: exits.append("killed")) as stop:
        send(signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        assert stop.requested
        assert exits == []
        pass_a_second(waits)
        send(signal.SIGHUP)
        assert exits == []
        send(signal.SIGTERM)
    assert exits == ["killed", teardown.EXIT_CODE]


def test_a_run_that_is_ending_already_is_not_cut_short_by_the_first_signal(exits: list[Any]) -> None:
    waits, said = Waits(), list[str]()
    with at_once_on_signals(waits, lambda: exits.append("killed"), said.append):
        send(signal.SIGTERM, signal.SIGTERM)
        assert exits == []
        pass_a_second(waits)
        send(signal.SIGTERM)
    assert exits == ["killed", teardown.EXIT_CODE]
    assert said == ["SIGTERM: the run is ending already; once more ends at once"]


def test_the_request_that_led_to_the_ending_counts(exits: list[Any]) -> None:
    waits = Waits()
    with StopSignals(waits, lambda: None):
        send(signal.SIGTERM)
    pass_a_second(waits)
    with at_once_on_signals(waits, lambda: exits.append("killed")):
        send(signal.SIGTERM)
    assert exits == ["killed", teardown.EXIT_CODE]


def test_before_the_run_a_repeated_signal_does_not_interrupt_what_the_first_has_begun(handlers: None) -> None:
    interrupt_on_signals()
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)
    send(signal.SIGTERM, signal.SIGINT)
