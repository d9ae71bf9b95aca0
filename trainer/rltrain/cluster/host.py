"""Inside a worker's process: its log, its stack dumps, its guard; and the worker object itself.

The controller's `WorkerGroup` is the other side. Nothing heavy is imported here: the worker's class arrives pickled
and is loaded only when log and environment are in place, so that a failing import is in the log too.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rltrain.cluster import guard, shield
from rltrain.core import work
from rltrain.core.collector import collector_off
from rltrain.core.errors import UserError, kind_and_line
from rltrain.core.spent import SPENT, Answered

SHM_PREFIX = "RLTRAIN_SHM_PREFIX"
"""Variable in each worker: a name of shared memory has to begin with its value, so that it is removed with the run."""
STACK_SIGNAL = signal.SIGUSR2


@dataclass(frozen=True)
class HostSpec:
    """What a process must know to become a worker."""

    name: str
    log: Path
    environ: dict[str, str]
    payload: bytes
    """Pickled (class, arguments)."""


@dataclass(frozen=True)
class HostFacts:
    """What the controller must know of a worker's process."""

    pid: int
    gpus: tuple[str, ...]
    """As CUDA_VISIBLE_DEVICES names them: those that Ray gave to this process."""


@dataclass(frozen=True)
class Failure:
    """An exception, on its way to the controller: never unpicklable, never a chain of wrappers."""

    line: str
    is_user_error: bool


def stacks_file(log: Path) -> Path:
    """Where the process that writes LOG dumps its stacks."""
    return log.with_suffix(".stacks")


class Host:
    """Holds the worker; every method of it is called through `call`."""

    def __init__(self, spec: HostSpec) -> None:
        shield.this_process()
        os.environ.update(spec.environ)
        os.environ[work.PLACE] = str(work.place_of(spec.log))
        _heed_threads()
        self._log = _redirect_output(spec)
        # A file of its own for stacks: the watchdog reads what is new in it.
        self._stacks = stacks_file(spec.log).open("a", encoding="utf-8")
        faulthandler.enable(self._log)
        faulthandler.register(STACK_SIGNAL, self._stacks, all_threads=True)
        self._guard = _lead_a_guarded_group()
        self._payload = spec.payload
        self._worker: Any = None

    def facts(self, gpus: list[str]) -> HostFacts:
        """This process, and the GPUs that Ray gave to it."""
        return HostFacts(os.getpid(), tuple(gpus))

    def build(self) -> Failure | None:
        """Load the worker's class and make the worker."""
        return self._guarded(self._build)

    def call(self, method: str, *args: Any) -> Any:
        """What METHOD returns with the time that it took, or a `Failure`."""
        return self._guarded(lambda: self._timed(method, args))

    def _timed(self, method: str, args: tuple[Any, ...]) -> Answered:
        value, span = SPENT.timed(lambda: getattr(self._worker, method)(*args))
        take_notes = getattr(self._worker, "take_notes", None)
        return Answered(value, span, tuple(take_notes()) if take_notes is not None else ())

    def _build(self) -> None:
        with collector_off():  # it would walk all that imports make again and again
            cls, args = pickle.loads(self._payload)
        self._worker = cls(*args)

    def _guarded(self, act: Any) -> Any:
        try:
            return act()
        except UserError as error:
            traceback.print_exc()
            return Failure(str(error), True)
        # The border of the process: whatever is raised has to reach the controller as words.
        except Exception as error:
            traceback.print_exc()
            return Failure(error_line(error), False)


def _heed_threads() -> None:
    """Set torch's threads where it was imported, in a fork server, before the process knew how many it may use."""
    torch: Any = sys.modules.get("torch")
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and wanted.isdigit() and torch.get_num_threads() != int(wanted):
        torch.set_num_threads(int(wanted))


def error_line(error: BaseException) -> str:
    """One line: kind, first line of the message, and the innermost place."""
    line = kind_and_line(error)
    frames = traceback.extract_tb(error.__traceback__)
    return f"{line} ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else line


def last_line(error: BaseException) -> str:
    """The last line of a message: in Ray's, the one that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _redirect_output(spec: HostSpec) -> TextIO:
    """Send everything that this process and its children print to the log, each line at once."""
    log = spec.log.open("a", encoding="utf-8", buffering=1)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", buffering=1, closefd=False, encoding="utf-8", errors="backslashreplace")
        for number in (1, 2)
    )
    print(f"== {spec.name}, process {os.getpid()}, {time.strftime('%Y-%m-%d %H:%M:%S')}", file=log)
    return log


def _lead_a_guarded_group() -> subprocess.Popen[bytes]:
    """Make this process the head of a process group of its own, and start the guard that outlives it.

    What the worker starts (an engine's processes) is in the group: a Ctrl-C at the terminal does not reach it, and
    the guard ends it should the worker die.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    return start_guard(os.getpid(), "", "", ())


def start_guard(group: int, prefix: str, session: str, others: Iterable[int]) -> subprocess.Popen[bytes]:
    """Start a guard over this process; see `rltrain.cluster.guard`. OTHERS: numbers of processes to end."""
    named = [f"{pid}:{guard.birth_of(pid)}" for pid in others]
    with shield.for_children():
        return subprocess.Popen(
            [sys.executable, "-S", "-E", guard.__file__, str(os.getpid()), str(group), prefix, session, *named],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
