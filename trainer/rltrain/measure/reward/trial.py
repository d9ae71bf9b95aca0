"""Calls of a reward function in a process of its own: started, watched, and killed when a call takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rltrain.core.errors import UserError
from rltrain.measure.reward.calls import Job, Said
from rltrain.rewards.wire import pack

CODE = "import sys; sys.path[:] = {path!r}; from rltrain.measure.reward.child import main; main({channel})"
LOAD_S = 120.0
"""Longest time for importing the user's file, which may import torch from a slow disk."""
MOST_LATE = 4
"""After so many calls that took too long, the rest is not tried: each costs the whole limit."""
_POLL_S = 0.2
_END_S = 5.0


@dataclass
class Trial:
    """What came of a job. `said`: by the number of the call; calls that were not tried are not in it."""

    said: dict[int, Said] = field(default_factory=dict[int, Said])
    ready: dict[str, Any] = field(default_factory=dict[str, Any])
    pickle: str | None = None


def run_trial(job: Job, limit_s: float, hash_seed: str = "0", on_call: Callable[[int], None] = lambda _: None) -> Trial:
    """Do JOB; a call that takes longer than LIMIT_S, or that ends the process, is `late`; the rest goes on without it.

    Args:
        job: what to do.
        limit_s: longest time of one call; in mode threads, longest silence.
        hash_seed: PYTHONHASHSEED of the process, which orders sets.
        on_call: told how many calls have been made.

    Raises:
        UserError: the file cannot be loaded, or has no such function.
    """
    trial, left, late = Trial(), list(range(len(job.calls))), 0
    while True:
        one = _Process(replace(job, calls=tuple(job.calls[number] for number in left)), hash_seed)
        try:
            why = one.listen(limit_s, lambda: on_call(len(trial.said)))
        finally:
            one.end()
        if one.failed or not one.ready:
            raise UserError(one.failed or f"{job.path}: {why} while it was loaded")
        trial.ready, trial.pickle = one.ready, one.pickle
        trial.said |= {left[number]: said for number, said in one.said.items()}
        if not why:
            return trial
        stuck = [one.started] if job.mode == "serial" else [n for n in range(len(left)) if n not in one.said]
        trial.said |= {left[number]: Said("late", words=why, seconds=limit_s) for number in stuck if number >= 0}
        late += 1
        left = [number for number in left if number not in trial.said]
        if job.mode != "serial" or not left or late >= MOST_LATE or one.started < 0:
            return trial


class _Process:
    """One process, and what it has said."""

    def __init__(self, job: Job, hash_seed: str) -> None:
        self.ready: dict[str, Any] = {}
        self.failed = ""
        self.pickle: str | None = None
        self.said: dict[int, Said] = {}
        self.started = -1
        self._ended = False
        self._rest = b""
        self._socket, theirs = socket.socketpair()
        path = [os.path.abspath(entry) for entry in sys.path]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", CODE.format(path=path, channel=theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
            )
        finally:
            theirs.close()
        self._socket.settimeout(LOAD_S)
        with contextlib.suppress(OSError):
            self._socket.sendall(pack(job))

    def listen(self, limit_s: float, on_line: Callable[[], None]) -> str:
        """Take what it says until its end; "" or why it did not come to it."""
        heard = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while not self._ended:
                if selector.select(_POLL_S):
                    try:
                        data = self._socket.recv(1 << 16)
                    except OSError:
                        data = b""
                    if not data:
                        return "" if self._ended or self.failed else self._how_it_ended()
                    if self._take(data):
                        heard = time.monotonic()
                        on_line()
                allowed = max(limit_s, LOAD_S) if not self.ready else limit_s
                if time.monotonic() - heard > allowed:
                    return f"took longer than {allowed:g} s"
        return ""

    def _take(self, data: bytes) -> bool:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            if "ready" in said:
                self.ready = said["ready"]
            elif "start" in said:
                self.started = said["start"]
            elif "call" in said:
                self.said[said["call"]] = Said(said["kind"], said["score"], said["words"], said["seconds"])
            elif "pickle" in said:
                self.pickle = said["pickle"]
            self.failed = said.get("failed", self.failed)
            self._ended = self._ended or "end" in said
        return bool(lines)

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "closed its channel"
        if status >= 0:
            return f"ended its process with exit code {status}"
        return f"ended its process by {signal.Signals(-status).name}"

    def end(self) -> None:
        """Kill it and its process group; what left that group is ended with the plug-in."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._socket.close()
