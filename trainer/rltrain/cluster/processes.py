"""Processes as the kernel sees them: who descends from whom, how one ended, and making sure that it did."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
LIBRARIES_SHARED_MEMORY = ("vllm_", "psm_", "torch_", "nccl-")
# linux/pidfd.h: PIDFD_GET_INFO = _IOWR(0xFF, 11, struct pidfd_info), whose first version has 64 bytes.
PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
PIDFD_INFO_EXIT = 1 << 3


@dataclass(frozen=True)
class Process:
    """One process; with its time of birth, as a number alone is used again."""

    pid: int
    born: float
    command: str

    def is_alive(self) -> bool:
        """Whether it still runs; one that only waits to be collected by its parent does not."""
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.born and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def __str__(self) -> str:
        return f"{self.pid} ({self.command[:80]})"


def descendants(pid: int) -> set[Process]:
    """Children of PID, their children, and so on; empty when PID is gone."""
    try:
        return {found for child in psutil.Process(pid).children(recursive=True) if (found := _of(child))}
    except psutil.Error:
        return set()


def family(pid: int) -> set[Process]:
    """PID and its descendants."""
    try:
        found = _of(psutil.Process(pid))
    except psutil.Error:
        found = None
    return descendants(pid) | ({found} if found else set())


def resident_bytes(pid: int | None = None) -> int:
    """RAM that process PID (null: this one) held at its most; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s*(\d+) kB", status, re.M)
    return int(found[1]) << 10 if found else 0


def group_members(groups: Iterable[int]) -> set[Process]:
    """Processes of our session in these process groups: what a dead worker leaves behind is still in its group."""
    wanted = set(groups)
    return {found for process in psutil.process_iter() if _group(process.pid) in wanted and (found := _of(process))}


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid) if os.getsid(pid) == os.getsid(0) else None
    except OSError:
        return None


def _of(process: psutil.Process) -> Process | None:
    try:
        words = process.cmdline() or [process.name()]
        return Process(process.pid, process.create_time(), " ".join(words).strip())
    except psutil.Error:
        return None


def wait_gone(processes: Iterable[Process], grace_s: float) -> list[Process]:
    """Wait until all are gone; returns those that are not after GRACE_S."""
    deadline = time.monotonic() + grace_s
    left = [process for process in processes if process.is_alive()]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [process for process in left if process.is_alive()]
    return left


def kill(processes: Iterable[Process], grace_s: float = 5.0) -> list[Process]:
    """SIGKILL; returns those that live on all the same (a process stuck in the kernel)."""
    targets = list(processes)
    for process in targets:
        if process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    return wait_gone(targets, grace_s)


def remove_shared_memory(prefix: str) -> list[str]:
    """Remove the shared-memory files whose names begin with PREFIX; returns their names."""
    found = sorted(SHARED_MEMORY.glob(f"{prefix}*"))
    for path in found:
        path.unlink(missing_ok=True)
    return [path.name for path in found]


def shared_memory_of(processes: Iterable[Process], since: float) -> set[Path]:
    """Files of shared memory that PROCESSES have mapped, that a library named, and that came after SINCE (Unix time).

    vLLM and Python remove theirs in an orderly end only. By name, as a user may keep a model in /dev/shm.
    """
    found: set[Path] = set()
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines()
        except OSError:
            continue
        names = {line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line}
        found |= {path for path in map(Path, names) if path.name.startswith(LIBRARIES_SHARED_MEMORY)}
    return {path for path in found if path.exists() and path.stat().st_ctime >= since}


def oom_kills() -> int:
    """Processes that this machine's kernel has killed for want of memory since it started."""
    try:
        words = Path("/proc/vmstat").read_text().split()
    except OSError:
        return 0
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


def open_pidfd(pid: int) -> int | None:
    """A handle that stays with the process PID even after its end; None where the kernel has none (before 5.3)."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def wait_status(pid: int, pidfd: int | None, timeout_s: float = 3.0) -> int | None:
    """How a process that is not our child ended, in the form of `os.waitpid`; None when the kernel does not tell.

    From the handle after its parent has collected it (Linux 6.15 and later), else from /proc in the moment before.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        status = _collected(pidfd)
        if status is None:
            status = _uncollected(pid)
        if status is not None or time.monotonic() > deadline:
            return status
        time.sleep(0.005)


def _collected(pidfd: int | None) -> int | None:
    if pidfd is None:
        return None
    buffer = bytearray(struct.pack("=Q", PIDFD_INFO_EXIT).ljust(64, b"\0"))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    (mask,) = struct.unpack_from("=Q", buffer)
    return struct.unpack_from("=i", buffer, 60)[0] if mask & PIDFD_INFO_EXIT else None


def _uncollected(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[-1]) if fields[0] == "Z" else None


def cause_of_death(said: str, status: int | None, new_oom_kills: int) -> str:
    """In words: how a process ended.

    Args:
        said: what Ray says of it. Ray knows exit codes of an orderly exit, and that SIGTERM came.
        status: what the kernel says, if it does.
        new_oom_kills: processes killed for want of memory on that node since the process started.
    """
    if "OutOfMemory" in said or "running low on memory" in said:
        return "was ended by Ray, as its node ran low on memory"
    # What the kernel says comes first: of a process that dies by itself, Ray may know only the SIGTERM that followed.
    killed = status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGTERM
    if "SIGTERM" in said and not killed:
        return "was ended by SIGTERM"
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        why = " by the kernel, as memory ran out" if number == signal.SIGKILL and new_oom_kills else ""
        return f"was killed by {signal.Signals(number).name}{why}"
    code = os.WEXITSTATUS(status) if status else _exit_code(said)
    if code is not None:
        return f"exited with code {code}"
    if new_oom_kills:
        return "ended without a word, and the kernel has killed a process as memory ran out"
    return "ended without a word, as after SIGKILL"


def _exit_code(said: str) -> int | None:
    found = re.search(r"exit code (\d+)", said)
    return int(found[1]) if found else None
