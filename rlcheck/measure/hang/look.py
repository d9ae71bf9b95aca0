"""Looks at a job three times: stacks by py-spy or by the process itself, CPU time, and whom its threads read from."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rlcheck.diagnose.hang.graph import Frame
from rlcheck.diagnose.hang.stacks import threads as threads_of
from rlcheck.facts.flight import Dump
from rlcheck.facts.hang import HangFacts, Peer, Process, Thread
from rlcheck.measure.hang.jobs import Job, process, works
from rlcheck.measure.hang.reads import Table
from rlcheck.measure.hang.recorders import ask, reached, worth_asking
from rlcheck.measure.machine.process import run_command
from rlcheck.stacks import Member, dumped, hindrance, parents, pids, py_spy, read

_SPIES_S, _LEAST_SPY_S = 7.5, 0.5
"""What all looks may take beside the time between them, so that the command answers within 20 s; a py-spy that has
begun has at least the shorter time."""
_AT_ONCE = max(4, min(16, os.cpu_count() or 1))
_DUMPS_S, _BY_S = 3.0, 15.0
"""Recorders may take until so long after the first look, and at least the shorter time: torch loads its compiler for
the first dump."""
_LOOKS = 3
_WAKES_OF_A_LOOK = 2
"""py-spy stops and starts a thread."""
_NO_ANSWER = ("child", "polled")
"""A server polls all of its clients."""
_TRIES, _BETWEEN_TRIES_S = 3, 0.005
_MOST_ANSWERERS = 16
_MOST_TASKS = 256


def watch(job: Job, watched_s: float, on: Callable[[str], None]) -> HangFacts:
    """The job, looked at three times within WATCHED_S seconds. ON: is told what is done."""
    # Ranks first: of very many processes the last ones are not seen each time.
    table = Table(pids())
    processes = sorted((*job.processes, *_answerers(job, table)), key=lambda one: (one.rank is None, not one.runs))
    looks: dict[int, list[tuple[Thread, ...]]] = {one.pid: [] for one in processes}
    # Before py-spy stops it for a moment: a poll that was interrupted goes on as another call, which names no file.
    read_from = {one.pid: _peers(table, one.pid) for one in processes}
    begun, left_s = time.monotonic(), _SPIES_S
    first = {one.pid: (_cpu_s(one.pid), _wakes(one.pid)) for one in processes}
    for number in range(_LOOKS):
        time.sleep(max(0.0, begun + watched_s * number / (_LOOKS - 1) - time.monotonic()))
        on(f"look {number + 1} of {_LOOKS} at {len(processes)} processes")
        looking = time.monotonic()
        for one, threads in zip(processes, _stacks(job, processes, looking + left_s), strict=True):
            looks[one.pid].append(threads)
        left_s -= time.monotonic() - looking
    passed = time.monotonic() - begun
    found: list[Process] = []
    for one in processes:
        stopped, seen = hindrance(Member("", one.pid)), tuple(look for look in looks[one.pid] if look)
        seen = seen if len(seen) > 1 or stopped else ()  # one look does not tell whether it moves
        threads = {thread.tid for thread in seen[-1]} if seen else {one.pid}
        peers = tuple(peer for peer in read_from[one.pid] if peer.tid in threads)
        share = (_cpu_s(one.pid) - first[one.pid][0]) / max(passed, 1e-3)
        wakes = max(0, _wakes(one.pid) - first[one.pid][1] - _LOOKS * _WAKES_OF_A_LOOK) / max(passed, 1e-3)
        ends = table.ends(one.pid)
        times = {"cpu_share": round(share, 3), "wakes_per_s": round(wakes, 1)}
        found.append(replace(one, looks=seen, peers=peers, hindrance=stopped, ends=ends, **times))
    recorded, notes, went_on = (), list[str](), False
    if not job.missing and worth_asking(found):
        on("flight recorders")
        recorded, notes = ask(found, job.pipes, max(_DUMPS_S, begun + _BY_S - time.monotonic()))
        # Ranks that go from one call to the next look alike whenever they are looked at: their numbers tell.
        again, _ = ask(found, job.pipes, max(_DUMPS_S, begun + _BY_S - time.monotonic())) if recorded else ((), [])
        before, after = reached(recorded), reached(again)
        went_on = any(before[rank] != after[rank] for rank in before.keys() & after.keys())
    blind = [one for one in found if not one.looks and not one.hindrance]
    if blind:
        notes.append(_blind(blind))
    if job.elsewhere:
        notes.append(f"{len(job.elsewhere)} ranks of other nodes were not looked at: --hosts or --head-ip does that")
    return HangFacts(
        processes=tuple(found), watched_s=round(passed, 1), missing=job.missing, elsewhere=job.elsewhere,
        recorded=recorded, went_on=went_on, open_s=_open_s(recorded), notes=tuple(notes),
    )  # fmt: skip


def _open_s(recorded: Sequence[Dump]) -> float | None:
    """How long the oldest call has been open."""
    queued = [call.created_ns for dump in recorded for call in dump.calls if call.open and call.created_ns]
    return round(time.time() - min(queued) / 1e9, 1) if queued else None


def _answerers(job: Job, table: Table) -> tuple[Process, ...]:
    """Processes outside the job for which one of it waits at a socket or pipe, and those for which they wait."""
    above = parents()
    known, todo = {one.pid for one in job.processes}, [one.pid for one in job.processes]
    found: list[Process] = []
    while todo and len(found) < _MOST_ANSWERERS:
        pid = todo.pop()
        for other in sorted(
            {peer.pid for peer in _peers(table, pid) if peer.pid and peer.how not in _NO_ANSWER} - known - {os.getpid()}
        ):
            known.add(other)
            if not works(other):
                continue
            todo.append(other)
            found.append(process(other, above, job.environs))
    return tuple(found)


def _peers(table: Table, pid: int) -> list[Peer]:
    """Whom the threads of a process read from; a main thread that polls is looked at until it does."""
    for _ in range(_TRIES):
        if table.peers(pid, pid):
            break
        time.sleep(_BETWEEN_TRIES_S)
    return [peer for tid in _tasks(pid) for peer in table.peers(pid, tid)]


def _tasks(pid: int) -> list[int]:
    with suppress(OSError):
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))[:_MOST_TASKS]
    return []


def _blind(blind: Sequence[Process]) -> str:
    which = ", ".join(str(one.pid) for one in blind[:8])
    if not py_spy(blind[0].pid):
        return f"no stacks of processes {which}: py-spy is not installed; pip install py-spy, beside rlcheck or the job"
    return (
        f"no stacks of processes {which}: py-spy could not look (not Python, or no permission: run as root, or as the "
        "job's user with kernel.yama.ptrace_scope=0)"
    )


def _stacks(job: Job, processes: Sequence[Process], deadline: float) -> list[tuple[Thread, ...]]:
    def threads(one: Process) -> tuple[Thread, ...]:
        return _threads(one.pid, job.stacks.get(one.pid), deadline)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(threads, processes))


def _threads(pid: int, stacks: Path | None, deadline: float) -> tuple[Thread, ...]:
    """Its threads in Python code, the main one first; none where they cannot be seen."""
    state = hindrance(Member("", pid))
    tool = py_spy(pid)
    if state in ("gone", "dead") or time.monotonic() > deadline:
        return ()
    # A stopped process is not attached to: that could set it going.
    way = ("--nonblocking",) if state else ()
    command = [tool, "dump", "--json", *way, "--pid", str(pid)]
    within_s = max(_LEAST_SPY_S, deadline - time.monotonic())
    done = run_command(command, os.environ, within_s).value if tool else None
    try:
        listed: Any = json.loads(done.stdout) if done is not None else []
        threads = [_thread(entry) for entry in listed]
    except (ValueError, TypeError, KeyError, AttributeError):
        threads = []
    if not threads and not state and stacks is not None:
        return _by_itself(pid, stacks)
    return tuple(sorted(threads, key=lambda thread: thread.tid != pid))


def _by_itself(pid: int, stacks: Path) -> tuple[Thread, ...]:
    """What a worker of rltrain writes of its own threads, where py-spy may not look: in most containers."""
    return tuple(
        Thread(tid=-number if number else pid, frames=tuple(map(_frame, one)))
        for number, one in enumerate(threads_of(dumped(pid, stacks)))
    )


def _frame(found: Frame) -> str:
    file, line, function = found
    return f"{'/'.join(file.split('/')[-3:])}:{line} in {function}"[:200]


def _thread(entry: Any) -> Thread:
    frames = [
        _frame((str(frame["filename"]), str(int(frame["line"])), str(frame["name"]))) for frame in entry["frames"][:60]
    ]
    tid = int(entry.get("os_thread_id") or 0)
    return Thread(
        tid=tid, frames=tuple(frames), name=str(entry.get("thread_name") or "")[:60], gil=bool(entry.get("owns_gil"))
    )


def _wakes(pid: int) -> int:
    """How often its main thread has gone to sleep by itself."""
    found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", read(f"/proc/{pid}/task/{pid}/status"), re.M)
    return int(found.group(1)) if found else 0


def _cpu_s(pid: int) -> float:
    """CPU time that the process has used."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0
