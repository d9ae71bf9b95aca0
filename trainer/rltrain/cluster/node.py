"""Looking at the worker processes of one node: how they died, what they wrote last, where they hang."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from rltrain.cluster.gpu_memory import GpuMemory, NvmlError
from rltrain.cluster.host import STACK_SIGNAL, stacks_file
from rltrain.cluster.processes import (
    Process,
    cause_of_death,
    descendants,
    family,
    kill,
    oom_kills,
    open_pidfd,
    resident_bytes,
    shared_memory_of,
    wait_gone,
    wait_status,
)

STACKS_BEGIN_S = 3.0
STACKS_END_S = 10.0
PY_SPY_TIMEOUT_S = 20.0
HANG_S = 20.0
"""What a look at the run may take beside the time for which it watches."""
_HINDRANCES = {
    psutil.STATUS_STOPPED: "is stopped",
    psutil.STATUS_TRACING_STOP: "is held by a debugger",
    psutil.STATUS_DISK_SLEEP: "waits in the kernel for a disk or a device",
    psutil.STATUS_ZOMBIE: "is dead",
}
TAIL_BYTES = 1 << 16
PORTS = range(20000, 32768)
"""Between those of Ray's workers and those that Linux gives to outgoing connections."""


class NodeEyes:
    """Runs on the node that it looks at: in the controller for its own node, as a Ray actor on any other."""

    def __init__(self) -> None:
        self._pidfds: dict[int, int | None] = {}
        self._oom_kills: dict[int, int] = {}
        self._families: dict[int, tuple[set[Process], set[Path]]] = {}
        self._born = time.time()
        self._gpu_memory: GpuMemory | None = None

    def watch(self, pid: int) -> None:
        """Remember the process, so that its end is known afterwards."""
        self._pidfds[pid] = open_pidfd(pid)
        self._oom_kills[pid] = oom_kills()

    def is_alive(self, pid: int) -> bool:
        """Whether the process still runs (a zombie does not)."""
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def watch_gpus(self, gpus: Sequence[str]) -> str | None:
        """Begin to watch the memory of GPUS, as CUDA_VISIBLE_DEVICES names them; why not, if that fails."""
        try:
            self._gpu_memory = GpuMemory(gpus)
        except NvmlError as error:
            return str(error)
        return None

    def take_gpu_memory(self) -> int | None:
        """Bytes in use on the fullest of the watched GPUs at the worst moment since last asked; None: unknown."""
        try:
            return self._gpu_memory.take() if self._gpu_memory is not None else None
        except NvmlError:
            return None

    def take_gpu_busy(self) -> dict[str, float]:
        """Of each watched GPU, the mean share of time in which a kernel ran since last asked."""
        return self._gpu_memory.take_busy() if self._gpu_memory is not None else {}

    def resident_bytes(self, pids: Sequence[int]) -> int:
        """RAM of the processes and of those that they started, each at its most; shared pages count in each."""
        members = {process.pid for pid in pids for process in descendants(pid)} | set(pids)
        return sum(map(resident_bytes, members))

    def fate(self, pid: int, said: str) -> str:
        """In words: how the process ended; SAID is Ray's account."""
        status = wait_status(pid, self._pidfds.get(pid))
        return cause_of_death(said, status, oom_kills() - self._oom_kills.get(pid, oom_kills()))

    def tail(self, log: Path, num_lines: int) -> list[str]:
        """The last lines of a log that say something."""
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line.rstrip() for line in text.splitlines() if line.strip()][-num_lines:]

    def reads(self, file: Path) -> str:
        """What FILE holds as this node sees it; "" where it sees none."""
        try:
            return file.read_text(encoding="utf-8")
        except OSError:
            return ""

    def hindrance(self, pid: int) -> str | None:
        """In words: what keeps the process from running at all, if anything does."""
        try:
            return _HINDRANCES.get(psutil.Process(pid).status())
        except psutil.NoSuchProcess:
            return "is gone"

    def stacks(self, pid: int, log: Path) -> str:
        """Where all threads of a worker are, and of the processes that it started."""
        parts = [self._own_stacks(pid, stacks_file(log))]
        parts += [
            f"started by it: {child}\n{_stacks_from_outside(child.pid)}"
            for child in sorted(descendants(pid), key=lambda child: child.pid)
            if "guard.py" not in child.command and "resource_tracker" not in child.command
        ]
        return "\n".join(parts)

    def hang(self, run_dir: Path, watched_s: float) -> bytes:
        """What `rlcheck hang` sees of the run's processes on this node, as JSON; b"" where it could not look."""
        asked = [sys.executable, "-m", "rlcheck.measure.hang", str(watched_s), str(run_dir)]
        with suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(asked, capture_output=True, timeout=watched_s + HANG_S, check=False).stdout
        return b""

    def remember_family(self, pid: int) -> None:
        """Note a worker that will be ended, and who descends from it; afterwards nobody could tell."""
        members = family(pid)
        self._families[pid] = members, shared_memory_of(members, self._born)

    def end_family(self, pid: int, grace_s: float) -> list[str]:
        """Wait until an ended worker and its descendants are gone, then kill what is left; returns what was killed.

        The shared memory that they have left is removed.
        """
        members, shared_memory = self._families.pop(pid)
        late = wait_gone(members, grace_s)
        kill(late)
        for path in shared_memory:
            path.unlink(missing_ok=True)
        return [str(process) for process in late]

    def free_port(self) -> int:
        """A TCP port that is free at this moment, where the kernel takes none for other connections meanwhile."""
        with socket.socket() as probe:
            for port in (*random.SystemRandom().sample(PORTS, 32), 0):
                with suppress(OSError):
                    probe.bind(("", port))
                    break
            return probe.getsockname()[1]

    def _own_stacks(self, pid: int, file: Path) -> str:
        """Have the process dump its stacks; its handler is written in C, and answers while Python code hangs."""
        begin = file.stat().st_size if file.exists() else 0
        if not _handles(pid, STACK_SIGNAL):
            return _stacks_from_outside(pid)  # it is on its way out: the signal would be its end
        try:
            os.kill(pid, STACK_SIGNAL)
        except ProcessLookupError:
            return "the process is gone"
        asked = time.monotonic()
        dumped = ""
        while time.monotonic() < asked + (STACKS_END_S if dumped else STACKS_BEGIN_S):
            time.sleep(0.1)
            with file.open(encoding="utf-8", errors="replace") as stream:
                stream.seek(begin)
                before, dumped = dumped, stream.read()
            # The main thread is dumped last, its outermost frame at the end; a busy machine pauses the dump anywhere.
            if dumped == before and dumped.endswith(" in <module>\n"):
                return dumped.strip()
        return dumped.strip() or _stacks_from_outside(pid)


def _handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal; one that is gone has none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _stacks_from_outside(pid: int) -> str:
    """Stacks by py-spy (which comes with `ray[default]`), else what the kernel knows."""
    beside = Path(sys.executable).with_name("py-spy")
    command = str(beside) if beside.exists() else shutil.which("py-spy")
    # The second way is for a process that is stopped already, which nobody can stop to look at it.
    for way in ((), ("--nonblocking",)) if command is not None else ():
        with suppress(OSError, subprocess.TimeoutExpired):
            asked = [str(command), "dump", *way, "--pid", str(pid)]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=PY_SPY_TIMEOUT_S)
            if done.returncode == 0:
                return done.stdout.strip()
    try:
        return f"no stacks; the kernel has it in: {Path(f'/proc/{pid}/wchan').read_text() or 'running'}"
    except OSError:
        return "no stacks: the process cannot be looked at"
