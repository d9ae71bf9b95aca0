"""What a process was seen in: its working threads, its call, whether it moves or keeps the interpreter lock."""

from __future__ import annotations

import re

from rlcheck.diagnose.hang.graph import in_collective
from rlcheck.facts.hang import Process, Thread

_FRAME = re.compile(r"(.*):(\d+) in (.*)", re.S)
BUSY = 0.2
"""Of one CPU: who uses more, computes."""
_RESTLESS_PER_S = 5.0
_SERVES = re.compile(
    r"/(selectors|base_events|socketserver|queue|http/server|concurrent/futures/thread)\.py:|in Worker\.main_loop"
)
_LOOPS = re.compile(r"/(base_events|socketserver|server|connection|pool|process)\.py:")
_JOINS = re.compile(r"/(threading|futures/_base)\.py:")
"""Files of the innermost frames of a thread that has nothing to do, of loops that others call for that, and of one that
waits for another thread."""
_MEETS = re.compile(r"torch/distributed/(rendezvous|elastic/)")
"""A rank that waits for all others to come polls their store: it wakes up often, and stands still."""


def who(one: Process) -> str:
    """`rank 3`, `reward (process 4711)`."""
    place = f" on {one.node}" if one.node else ""
    return f"rank {one.rank}{place}" if one.rank is not None else f"{one.role} (process {one.number}{place})"


def working(one: Process) -> list[Thread]:
    """Its threads that are in the middle of something: the main one, or the others where that one only serves."""
    threads = one.looks[-1] if one.looks else ()
    busy = [thread for thread in threads if thread.frames and not _idle(thread)]
    if busy and threads and busy[0] is threads[0] and not _JOINS.search(f"/{busy[0].frames[0]}"):
        return busy[:1]
    return busy


def _idle(thread: Thread) -> bool:
    """Whether it waits for work: in a server's loop, or an empty queue of a pool."""
    inner = [f"/{frame}" for frame in thread.frames if "threading.py:" not in frame][:2]
    if len(inner) > 1 and "/selectors.py:" in inner[0] and not _LOOPS.search(inner[1]):
        return False  # it polls for answers in its own code
    if inner and (_SERVES.search(inner[0]) or "in accept" in inner[0]):
        return True
    # A server's thread that reads the next request of a connection.
    return len(inner) > 1 and "/socket.py:" in inner[0] and _SERVES.search(inner[1]) is not None


def call_of(one: Process) -> str:
    """Where it is, in a line."""
    threads = working(one)
    if not threads:
        return one.runs
    deepest = max(threads, key=lambda thread: (thread.gil, len(thread.frames)))
    own = next(
        (frame for frame in deepest.frames if "site-packages" not in frame and not _library(frame)), deepest.frames[0]
    )
    inner = deepest.frames[0]
    return own if own == inner else f"{inner.rpartition(' in ')[2]} at {own}"


def stack_of(one: Process) -> tuple[str, ...]:
    """The frames of the thread that it works in."""
    threads = working(one)
    return max(threads, key=lambda thread: len(thread.frames)).frames[:24] if threads else ()


def holds_lock(one: Process) -> bool:
    """Whether one thread has kept the interpreter's lock in one place at all looks, while the process does not compute
    Python, which would show another line or another holder."""
    keepers = [next(((thread.tid, thread.frames) for thread in look if thread.gil), None) for look in one.looks]
    return len(keepers) > 1 and keepers[0] is not None and all(keeper == keepers[0] for keeper in keepers)


def goes_on(one: Process) -> bool:
    """Whether its working threads were elsewhere at another look."""
    return len({tuple((thread.tid, thread.frames) for thread in look if not _idle(thread)) for look in one.looks}) > 1


def restless(one: Process) -> bool:
    """Whether a rank goes to sleep and wakes up often, in one place: who hangs in a call sleeps once."""
    if one.rank is None or one.hindrance or one.wakes_per_s <= _RESTLESS_PER_S:
        return False
    return not any(_MEETS.search(frame) for thread in working(one) for frame in thread.frames[:8])


def moves(one: Process) -> bool:
    """Whether it went on between the looks: its working threads are elsewhere, it wakes up often, or it computes."""
    if one.hindrance or holds_lock(one):
        return False
    within = bool(one.looks and one.looks[-1] and collective(one.looks[-1][0]))
    return goes_on(one) or restless(one) or (one.cpu_share > BUSY and not within)


def collective(thread: Thread) -> str:
    """`all_reduce at train.py:88 in step` of a thread that waits for other ranks; else ""."""
    frames = [match.groups() for frame in thread.frames if (match := _FRAME.fullmatch(frame))]
    if not frames or not in_collective([(file, line, function) for file, line, function in frames]):
        return ""
    within = [
        at for at, frame in enumerate(frames[:12]) if "torch/distributed/" in frame[0] or "torch/cuda/" in frame[0]
    ]
    plain = [at for at in within if "wrapper" not in frames[at][2]]
    name = frames[plain[-1] if plain else 0][2]
    site = next((thread.frames[at] for at in range((within[-1] if within else 0) + 1, len(frames))), thread.frames[0])
    return f"{name} at {site.rpartition('/')[2]}"


def _library(frame: str) -> bool:
    return (
        bool(
            re.match(
                r"(lib/)?python3\.\d+/|torch/|ray/|urllib3/|requests/|httpx/|http/|multiprocessing/|concurrent/", frame
            )
        )
        or "/python3." in frame
    )
