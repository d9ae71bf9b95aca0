"""Signals that end a run, at the worst moment."""

from __future__ import annotations

import io
import os
import signal
import time

import pytest

from rltrain.cluster.teardown import Interrupted, StopSignals
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
