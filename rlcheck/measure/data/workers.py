"""Workers that read data files beside each other in the examined Python, and never outlive the doctor's interest.

Each is a process in a session of its own that takes one task at a time. It ends when its standard input does, so it
goes with the doctor whatever happens to that.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rlcheck.errors import UserError
from rlcheck.measure.cluster.program import ONE_LINER, first_line, sources_of

_SOURCES = Path(__file__).resolve().parent.parent.parent / "remote" / "data"
_PACKAGE = "rlcheck_dataset"
_START_S = 180.0
"""transformers on a cold network file system takes minutes to import."""
SILENCE_S = 300.0
"""Longest time between two answers about one slice."""
_LEAVE_S = 2.0
_TAIL_BYTES = 16 << 10

Told = Callable[[int, dict[str, Any]], None]
"""Called with the number of a task and each thing that was said about it, `done` last."""


class WorkersFailed(UserError):
    """No worker can be started. One line for the user."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    task: int = -1
    heard: float = field(default_factory=time.monotonic)
    is_ready: bool = False
    is_gone: bool = False
    why: str = ""


class Workers:
    """Some processes that take tasks until the block is left.

    Args:
        python: command line of the interpreter; empty means the doctor's own.
        options: for `rlcheck/remote/data/judge.py`.
        num_workers: how many.
        silence_s: longest time between two answers about one slice.
    """

    def __init__(
        self, python: Sequence[str], options: Mapping[str, Any], num_workers: int, silence_s: float = SILENCE_S
    ) -> None:
        self._silence_s = silence_s
        self.python = list(python) or [sys.executable]
        self._line = first_line(sources_of(_SOURCES, _PACKAGE), f"{_PACKAGE}.main:main", options)
        self._num_workers = num_workers
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._before: Any = None
        self.hello: dict[str, Any] = {}
        """What the first worker said when it was ready."""

    def __enter__(self) -> Workers:
        with contextlib.suppress(ValueError):  # not in the main thread: then nobody else will handle it here either
            self._before = signal.signal(signal.SIGTERM, _stop)
        try:
            for _ in range(self._num_workers):
                self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):
                if worker.process.stdin is not None:
                    worker.process.stdin.close()
            with contextlib.suppress(OSError):
                os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in self._workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(_LEAVE_S)
            for pipe in (worker.process.stdout, worker.process.stderr):
                if pipe is not None:
                    pipe.close()
        self._selector.close()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _start(self) -> None:
        try:
            process = subprocess.Popen(
                [*self.python, "-u", "-c", ONE_LINER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise WorkersFailed(f"{' '.join(self.python)} cannot be started: {error}") from None
        worker = _Worker(process)
        self._workers.append(worker)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, (worker, pipe is process.stderr))
        self._send(worker, self._line)

    def run(self, tasks: Iterable[Mapping[str, Any]], told: Told) -> None:
        """Have all TASKS done; the order of what is reported is that of the answers.

        A task whose worker dies or says nothing for too long ends with `{"done": True, "error": …}`.

        Raises:
            WorkersFailed: none of the workers came up or is left.
        """
        todo = deque(enumerate(tasks))
        while todo or any(worker.task >= 0 for worker in self._workers):
            for worker in self._workers:
                if todo and worker.is_ready and worker.task < 0 and not worker.is_gone:
                    worker.task, task = todo.popleft()
                    worker.heard = time.monotonic()
                    self._send(worker, json.dumps(dict(task)).encode() + b"\n")
            if all(worker.is_gone for worker in self._workers):
                raise WorkersFailed(f"{' '.join(self.python)}: {self._workers[0].why}")
            self._listen(told)

    def _listen(self, told: Told) -> None:
        for key, _ in self._selector.select(1.0):
            worker, is_error = key.data
            chunk = os.read(key.fd, 1 << 20)
            if not chunk:
                self._selector.unregister(key.fileobj)
                if not is_error:
                    self._lost(worker, told)
            elif is_error:
                worker.err = (worker.err + chunk)[-_TAIL_BYTES:]
            else:
                self._take(worker, chunk, told)
        for worker in self._workers:
            limit_s = self._silence_s if worker.is_ready else _START_S
            busy = worker.task >= 0 or not worker.is_ready
            if busy and not worker.is_gone and time.monotonic() - worker.heard > limit_s:
                worker.why = f"said nothing for {limit_s:.0f} s"
                with contextlib.suppress(OSError):
                    os.killpg(worker.process.pid, signal.SIGKILL)
                worker.heard = time.monotonic()

    def _take(self, worker: _Worker, chunk: bytes, told: Told) -> None:
        worker.out += chunk
        if b"\n" not in chunk:
            return
        *lines, rest = worker.out.split(b"\n")
        worker.out, worker.heard = rest, time.monotonic()
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            if "ready" in said:
                worker.is_ready = True
                self.hello = self.hello or said
                continue
            task = worker.task
            if said.get("done"):
                worker.task = -1
            told(task, said)

    def _lost(self, worker: _Worker, told: Told) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(_LEAVE_S)
        code = worker.process.returncode
        last = worker.err.decode("utf-8", "replace").strip().splitlines()
        how = "ended" if code is None else f"died of signal {-code}" if code < 0 else f"ended with status {code}"
        worker.why = worker.why or f"the process that reads the data {how}{': ' + last[-1][:200] if last else ''}"
        worker.is_gone = True
        if worker.task >= 0:
            task, worker.task = worker.task, -1
            told(task, {"done": True, "error": worker.why})

    def _send(self, worker: _Worker, line: bytes) -> None:
        assert worker.process.stdin is not None
        with contextlib.suppress(OSError):  # it has gone: its end of file says so
            worker.process.stdin.write(line)
            worker.process.stdin.flush()


def _stop(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM leaves by the same way as an interrupt, so that nothing is left running."""
    raise SystemExit(128 + signal.SIGTERM)
