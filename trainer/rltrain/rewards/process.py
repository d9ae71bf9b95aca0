"""One child process of a reward pool: started, talked to, watched and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil

from rltrain.rewards.request import RewardRequest
from rltrain.rewards.spec import ScorerSpec
from rltrain.rewards.wire import COUNTER, Inbox, Progress, pack

CODE = "import sys; sys.path[:] = {path!r}; from rltrain.rewards.child import main; main({numbers})"
READ_BYTES = 1 << 20
KILL_TIMEOUT_S = 10.0


class Child:
    """A process of its own session that scores lists of requests.

    Its standard output and error go to this process's standard error, so that what a user's function prints lands in
    the log and never in a message; its standard input is empty.
    """

    def __init__(self, spec: ScorerSpec) -> None:
        self.since = time.monotonic()
        """When it was last seen to make progress, seconds of the monotonic clock."""
        self.ready = False
        """Whether it has loaded its rules and functions."""
        self._seen = 0
        self._inbox = Inbox()
        self._socket, theirs = socket.socketpair()
        memory = os.memfd_create("rltrain-reward", os.MFD_CLOEXEC)
        os.ftruncate(memory, COUNTER.size)
        self._progress = Progress(memory)
        lifeline, self._lifeline = os.pipe()
        numbers = (theirs.fileno(), memory, lifeline)
        try:
            self._process = _start(numbers)
        finally:
            theirs.close()
            os.close(memory)
            os.close(lifeline)
        self.send(spec, spec.timeout_s)

    @property
    def pid(self) -> int:
        """Of the process, and of its process group."""
        return self._process.pid

    def fileno(self) -> int:
        """For `selectors`: readable when a reply arrives, or when the process has ended."""
        return self._socket.fileno()

    def send(self, message: ScorerSpec | Sequence[RewardRequest], timeout_s: float) -> None:
        """Hand over MESSAGE; a child that does not take it is found by `ended` or by its lack of progress."""
        self._progress.value = self._seen = 0
        self.since = time.monotonic()
        self._socket.settimeout(timeout_s)
        with contextlib.suppress(OSError):
            self._socket.sendall(pack(message))

    def receive(self) -> tuple[Any] | None:
        """A reply that has arrived, in a tuple of one; None while there is none.

        Raises:
            EOFError: there will be none: the child has closed the channel.
        """
        self._socket.settimeout(0)
        while (reply := self._inbox.take()) is None:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                return None
            except OSError as error:
                raise EOFError(str(error)) from None
            if not data:
                raise EOFError
            self._inbox.add(data)
        return reply

    def working_on(self, num_parts: int) -> tuple[int, int]:
        """Number of the sample in the list and of the part, as far as it got; notes the time when that changes."""
        now = self._progress.value
        if now != self._seen:
            self._seen, self.since = now, time.monotonic()
        return divmod(max(0, now - 1), max(1, num_parts))

    def ended(self) -> str | None:
        """How the process ended, in words; None while it runs. Leaves it to be reaped by `kill`."""
        try:
            state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return "ended, nobody knows how"
        if state is None:
            return None
        if state.si_code == os.CLD_EXITED:
            return f"ended its process with exit code {state.si_status}"
        name = signal.Signals(state.si_status).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"ended its process by {name}{hint}"

    def how_it_ended(self, wait_s: float = 1.0) -> str:
        """As `ended`, for a child whose channel is closed: its end may take a moment longer."""
        deadline = time.monotonic() + wait_s
        while (words := self.ended()) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return words or "closed the channel to the pool"

    def kill(self) -> None:
        """End the process and all that it has started, and close what leads to it."""
        # Those that left the process group; must be asked while the process exists.
        try:
            descendants = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            descendants = []
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel is left to init
            self._process.wait(KILL_TIMEOUT_S)
        self._socket.close()
        self._progress.close()
        os.close(self._lifeline)


def _start(numbers: tuple[int, int, int]) -> subprocess.Popen[bytes]:
    code = CODE.format(path=[os.path.abspath(entry) for entry in sys.path], numbers=", ".join(map(str, numbers)))
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=numbers,
        start_new_session=True,  # a terminal's Ctrl-C is the pool's business; also makes a group to kill
        env={**os.environ, "PYTHONHASHSEED": "0"},  # the same order of sets in every process
    )
