"""Where the processes of a run on this machine are: their stacks, without stopping any of them for long.

A worker of rltrain dumps its stacks on SIGUSR2 into a file of its own (docs/adr/0012); that file, held open by the
process, is what proves that the process is the run's and knows the signal. Others are asked by py-spy where there is
one, and else the kernel tells what they wait in.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

STACK_SIGNAL = signal.SIGUSR2
LOCK = "run.lock"
_ANSWER_S = 3.0
_PY_SPY_S = 20.0
_MAX_PROCESSES = 64
_HELPERS = ("guard.py", "resource_tracker", "py-spy", "ray::IDLE", "/ray/core/src/", "/ray/_private/",
            "/ray/dashboard/", "/ray/autoscaler/")  # fmt: skip
"""Words in the command lines of processes that carry no rank's work."""
_STATES = {"T": "stopped", "t": "held by a debugger", "D": "waits in the kernel", "Z": "dead"}
"""States in which a process cannot go on by itself."""


@dataclass(frozen=True)
class Member:
    """A process of the run. `stacks`: the file into which it dumps them when it gets the signal."""

    name: str
    pid: int
    stacks: Path | None = None


def members(run_dir: Path) -> tuple[Member, ...]:
    """The run's processes on this machine: its workers by name, the controller, then all that descends from them."""
    roots = [member for member in (*_workers(run_dir), _controller(run_dir)) if member is not None]
    if not roots:
        roots = [Member(_title(pid), pid) for pid in _naming(run_dir)]
    known = {member.pid for member in roots}
    above = parents()
    more = [pid for pid in sorted(above) if pid not in known and _descends(pid, known, above) and _works(pid)]
    return (*roots, *(Member(_title(pid), pid) for pid in more))[:_MAX_PROCESSES]


def absent(run_dir: Path, found: tuple[Member, ...]) -> tuple[str, ...]:
    """Workers that the run has had and that are not among FOUND: gone, or on another machine."""
    there = {member.name for member in found}
    return tuple(path.stem for path in sorted((run_dir / "logs").glob("*.stacks")) if path.stem not in there)


def stack(member: Member) -> str:
    """Where its threads are, as well as known."""
    if member.stacks is not None and (text := dumped(member.pid, member.stacks)):
        return text
    return _by_py_spy(member.pid) or _by_kernel(member.pid)


def hindrance(member: Member) -> str:
    """What keeps the process from going on at all; "" for one that can."""
    state = re.search(r"^State:\s*(\w)", read(f"/proc/{member.pid}/status"), re.M)
    return _STATES.get(state.group(1), "") if state is not None else "gone"


def _controller(run_dir: Path) -> Member | None:
    """Who holds the run's lock."""
    with suppress(OSError, ValueError):
        pid = int((run_dir / LOCK).read_text()[:20])
        if _holds(pid, run_dir / LOCK):
            return Member("controller", pid)
    return None


def _workers(run_dir: Path) -> list[Member]:
    """Those that hold their file for stacks open: numbers in a log may be somebody else's now, or another machine's."""
    files: dict[tuple[int, int], Path] = {}
    for path in sorted((run_dir / "logs").glob("*.stacks")):
        with suppress(OSError):
            files[_identity(os.stat(path))] = path
    found: dict[Path, Member] = {}
    for pid in pids() if files else ():
        for path in _open_files(pid, files):
            # What it has forked holds the file, too, and has a higher number; so does who reads it, without a handler.
            if path not in found or (_handles(pid) and not _handles(found[path].pid)):
                found[path] = Member(path.stem, pid, path)
    return [found[path] for path in sorted(found)]


def _naming(run_dir: Path) -> list[int]:
    """Processes whose command line names the run's directory: of a trainer that leaves no lock."""
    words = {str(run_dir), os.path.realpath(run_dir)}
    own = {os.getpid(), os.getppid()}
    found: list[int] = []
    for pid in pids():
        line = command(pid)
        if pid not in own and "rlcheck" not in line[:200] and any(word in line for word in words):
            found.append(pid)
    return found


def _holds(pid: int, path: Path) -> bool:
    """Whether the process has `path` open."""
    with suppress(OSError):
        return bool(_open_files(pid, {_identity(path.stat()): path}))
    return False


def _open_files(pid: int, wanted: dict[tuple[int, int], Path]) -> set[Path]:
    """Which of `wanted` the process has open; none of a process that may not be looked at."""
    found: set[Path] = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = wanted.get(_identity(os.stat(f"/proc/{pid}/fd/{name}")))
                if path is not None:
                    found.add(path)
    return found


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def dumped(pid: int, file: Path) -> str:
    """What the process writes into `file` on the signal; "" if it knows no such signal, or does not answer."""
    if not _handles(pid):
        return ""
    text = ""
    with suppress(OSError):
        begin = file.stat().st_size
        os.kill(pid, STACK_SIGNAL)
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            time.sleep(0.1)
            with file.open(encoding="utf-8", errors="replace") as stream:
                stream.seek(begin)
                before, text = text, stream.read()
            if text and text == before:
                break
    return text.strip()


def _handles(pid: int) -> bool:
    """Whether the process has a handler for the signal: without one it would be its end."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", read(f"/proc/{pid}/status"), re.M)
    return caught is not None and bool(int(caught.group(1), 16) >> (STACK_SIGNAL - 1) & 1)


def _by_py_spy(pid: int) -> str:
    """Python stacks, from the py-spy of the doctor's environment, of the process's own, or of PATH."""
    tool = py_spy(pid)
    # The second way is for a process that is stopped already, or that may not be stopped.
    for way in ((), ("--nonblocking",)) if tool else ():
        with suppress(OSError, subprocess.TimeoutExpired):
            words = [tool, "dump", *way, "--pid", str(pid)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=_PY_SPY_S, errors="replace")
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.strip()
    return ""


def py_spy(pid: int) -> str:
    """The py-spy of the doctor's environment, of the process's own, or of PATH; "" where there is none."""
    homes = [os.path.dirname(program) for program in (sys.executable, command(pid).split(" ")[0])]
    beside = [os.path.join(home, "py-spy") for home in homes if os.path.isabs(home)]
    return next((path for path in beside if os.access(path, os.X_OK)), shutil.which("py-spy") or "")


def _by_kernel(pid: int) -> str:
    """State, what the kernel has it wait in and, for root, the kernel's stack."""
    state = re.search(r"^State:\s*(.+)", read(f"/proc/{pid}/status"), re.M)
    if state is None:
        return "the process is gone"
    wait = read(f"/proc/{pid}/wchan").strip()
    lines = [f"state {state.group(1)}" + (f", waits in {wait}" if wait not in ("", "0") else "")]
    return "\n".join([*lines, *read(f"/proc/{pid}/stack").splitlines()[:12]])


def pids() -> list[int]:
    """Every process of this machine."""
    with suppress(OSError):
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    return []


def parents() -> dict[int, int]:
    """The parent of every process."""
    found: dict[int, int] = {}
    for pid in pids():
        # After the name, which may hold anything and ends with the last bracket: state, parent.
        fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if len(fields) > 1 and fields[0] != "Z":
            found[pid] = int(fields[1])
    return found


def _descends(pid: int, known: set[int], above: dict[int, int]) -> bool:
    for _ in range(_MAX_PROCESSES):
        pid = above.get(pid, 0)
        if pid in known:
            return True
        if pid <= 1:
            return False
    return False


def _works(pid: int) -> bool:
    line = command(pid)
    return bool(line) and not any(word in line for word in _HELPERS)


def _title(pid: int) -> str:
    return command(pid)[:60] or "a process"


def command(pid: int) -> str:
    """The command line of a process, or the title that it has given itself."""
    return read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def read(path: str) -> str:
    """The first 64 KiB of a file; "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
