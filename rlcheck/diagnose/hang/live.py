"""From what live processes were seen in to who waits for whom, and who holds all up.

A rank in a collective waits for the ranks that are not in it; a thread that reads a socket or a pipe, for who has the
other end; one in `ray.get`, for the actors that run a method. Who is waited for, waits for none and did not move while
it was looked at is the culprit. One that moves or computes is none: the job is not known to stand still.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rlcheck.diagnose.hang.graph import bottoms, in_collective, ranks_words
from rlcheck.facts.hang import Culprit, Hang, HangFacts, Kind, Peer, Process, Thread, Wait

_FRAME = re.compile(r"(.*):(\d+) in (.*)", re.S)
_BUSY = 0.2
"""Of one CPU: who uses more, computes."""
_SERVES = re.compile(r"/(selectors|base_events|socketserver|queue|http/server|concurrent/futures/thread)\.py:")
_JOINS = re.compile(r"/(threading|futures/_base)\.py:")
"""Files of the innermost frames of a thread that has nothing to do, and of one that waits for another thread."""
_RAY_WAITS = re.compile(
    r"ray/_private/(worker|client_mode_hook)\.py:\d+ in (get|wait|get_objects)|ray/_private/worker\.py"
)
_ALONE = ("stopped", "held by a debugger", "dead", "waits in the kernel")
STEPS: Mapping[Kind, str] = {
    "stopped": "kill -CONT PID lets a stopped process go on; one that waits in the kernel waits for a disk or a driver",
    "gone": "look in its log and in its node's kernel log (dmesg) for what ended it; the job must be started again",
    "gil": "a thread holds the interpreter lock in native code: replace that call, or give it a process",
    "behind": "read its stack: it waits, loops or has left the step of the others (a caught exception)",
    "mismatch": "compare the code paths of these ranks: a branch, a batch or a shape that differs between ranks",
    "stuck": "read its stack and its log; give the call a deadline, so that the run fails there, not in all who wait",
    "circle": "give all the same order of calls; a message between them was lost, or each waits for the other's",
    "inside": "compare the call's shapes over the ranks (TORCH_FR_BUFFER_SIZE records them); then rlcheck nccl",
    "no dump": "look whether its process lives",
    "not started": "look at its GPU: nvidia-smi, dmesg for Xid",
}


@dataclass(frozen=True)
class Judged:
    """`hang`: the verdict, None where there is none. `doubt`: why nothing can be said; "" where the job is known to
    move. `said`: what it waits for, where it moves."""

    hang: Hang | None = None
    doubt: str = ""
    said: str = ""


@dataclass
class Graph:
    """The processes of one job and whom each waits for."""

    facts: HangFacts
    edges: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    kinds: dict[int, Kind] = field(default_factory=dict[int, Kind])
    addresses: dict[int, str] = field(default_factory=dict[int, str])

    @cached_property
    def by_pid(self) -> dict[int, Process]:
        """The processes."""
        return {one.pid: one for one in self.facts.processes}

    @cached_property
    def inside(self) -> dict[int, str]:
        """The call of each process that is in a collective: its operation and where it is called."""
        return {
            one.pid: collective(one.looks[-1][0])
            for one in self.facts.processes
            if one.looks
            and one.looks[-1]
            and not one.hindrance
            and not holds_lock(one)
            and collective(one.looks[-1][0])
        }

    def build(self) -> None:
        """Find who waits for whom."""
        for one in self.facts.processes:
            if not one.hindrance and not holds_lock(one):
                self._of_reads(one)
        self._of_collectives()

    def _of_reads(self, one: Process) -> None:
        if not one.looks:
            self._follow(one, one.peers)
            return
        threads = working(one)
        tids = {thread.tid for thread in threads}
        self._follow(one, [peer for peer in one.peers if peer.tid in tids])
        if any(_RAY_WAITS.search(frame) for thread in threads for frame in thread.frames[:6]):
            self.edges[one.pid] |= {other.pid for other in self.facts.processes if other.runs and other.pid != one.pid}

    def _follow(self, one: Process, peers: Sequence[Peer]) -> None:
        for peer in peers:
            if peer.pid in self.by_pid:
                if one.role != "launcher":
                    self.edges[one.pid].add(peer.pid)
            elif peer.how == "socket" and peer.address:
                self.addresses[one.pid] = peer.address

    def _of_collectives(self) -> None:
        jobs: dict[str, list[Process]] = defaultdict(list)
        for one in self.facts.processes:
            jobs[one.job if one.rank is not None else one.role].append(one)
        for ranks in jobs.values():
            within = {one.pid: self.inside[one.pid] for one in ranks if one.pid in self.inside}
            outside = [one.pid for one in ranks if one.pid not in within]
            if not within:
                continue
            for pid in within:
                self.edges[pid] |= set(outside)
            for pid in outside:
                self.kinds.setdefault(pid, "behind")
            if not outside:
                self._of_other_calls(within)

    def _of_other_calls(self, within: Mapping[int, str]) -> None:
        calls = Counter(within.values())
        if len(calls) < 2:
            return
        usual, often = calls.most_common(1)[0]
        unclear = sum(count == often for count in calls.values()) > 1
        for pid, call in within.items():
            if unclear or call != usual:
                self.kinds[pid] = "mismatch"
        for pid, call in within.items():
            self.edges[pid] |= {
                odd for odd in within if self.kinds.get(odd) and odd != pid and (unclear or call == usual)
            }


def judge(facts: HangFacts) -> Judged:
    """The verdict on a job that was looked at."""
    graph = Graph(facts)
    graph.build()
    targets = {pid: found for pid, found in graph.edges.items() if found}
    stopped = [one.pid for one in facts.processes if one.hindrance in _ALONE and one.role != "launcher"]
    ends = bottoms(targets)
    found: dict[int, Kind] = {}
    moving: list[Process] = []
    for end in ends:
        for pid in end:
            one = graph.by_pid[pid]
            if one.hindrance:
                found[pid] = "gone" if one.hindrance in ("dead", "gone") else "stopped"
            elif holds_lock(one):
                found[pid] = "gil"
            elif moves(one):
                moving.append(one)
            elif not one.looks:
                return Judged(doubt=f"{who(one)} is waited for, and its stack cannot be seen")
            else:
                found[pid] = graph.kinds.get(pid, "circle" if len(end) > 1 else "stuck")
    found |= {pid: "stopped" for pid in stopped if graph.by_pid[pid].hindrance != "waits in the kernel" or not found}
    return _judged(facts, graph, targets, found, moving)


def _judged(
    facts: HangFacts, graph: Graph, targets: Mapping[int, set[int]], found: dict[int, Kind], moving: Sequence[Process]
) -> Judged:
    still = [one for one in facts.processes if one.looks and not moves(one) and not one.hindrance]
    waiting = [one for one in still if one.pid in graph.inside or one.pid in graph.edges or one.pid in graph.addresses]
    gone = facts.missing if any(one.pid in graph.inside for one in still) else ()
    if found or gone:
        return Judged(hang=_hang(graph, targets, found, gone))
    if moving:
        return Judged(said=f"the job waits for {', '.join(map(who, moving[:4]))}, which goes on: {call_of(moving[0])}")
    outward = [one for one in waiting if one.pid in graph.addresses and not targets.get(one.pid)]
    if outward:
        return Judged(hang=_outward(graph, targets, outward))
    if not any(one.looks for one in facts.processes):
        return Judged(doubt="no stack of any process could be seen")
    within = [one for one in still if one.pid in graph.inside]
    if within and len(within) == len([one for one in facts.processes if one.rank is not None]):
        return _all_inside(facts, graph, within)
    # A launcher or a logger that moves says nothing of ranks that do not.
    ranks = [one for one in facts.processes if one.rank is not None]
    if any(map(moves, ranks or facts.processes)):
        return Judged(said="processes of the job move")
    what = "no rank" if any(map(moves, facts.processes)) else "nothing"
    return Judged(doubt=f"{what} moved for {facts.watched_s:.0f} s, and none was seen to wait for another process")


def _all_inside(facts: HangFacts, graph: Graph, within: Sequence[Process]) -> Judged:
    """All ranks here are in one call, and none of them moves."""
    # That a rank gave no dump in time says nothing of one whose process is seen.
    if facts.dumped is not None and any(one.kind != "no dump" for one in facts.dumped.culprits):
        return Judged(hang=facts.dumped)
    if facts.elsewhere:
        return Judged(doubt="all ranks here wait in a collective; whom for is seen on the other nodes")
    if any(one.cpu_share > _BUSY for one in within):
        return Judged(
            doubt="all ranks are in one call and use their CPUs in it, as with GPUs at work; "
            "with TORCH_FR_BUFFER_SIZE and TORCH_NCCL_DEBUG_INFO_PIPE_FILE their recorders would say"
        )
    call = graph.inside[within[0].pid]
    return Judged(hang=Hang(
        said=f"all {len(within)} ranks are in {call}, and none of them has moved for {facts.watched_s:.0f} s",
        waits=tuple(_wait(graph, one.pid, set()) for one in within),
        steps=(STEPS["inside"],),
    ))  # fmt: skip


def _outward(graph: Graph, targets: Mapping[int, set[int]], outward: Sequence[Process]) -> Hang:
    culprits = [
        Culprit(
            rank=None,
            kind="stuck",
            role=f"server at {graph.addresses[one.pid]}",
            call=call_of(one),
            stack=stack_of(one),
        )
        for one in outward
    ]
    return Hang(
        said=f"{who(outward[0])} waits for an answer of {culprits[0].role}",
        culprits=tuple(culprits),
        waits=tuple(_wait(graph, pid, some) for pid, some in targets.items()),
        steps=(f"look at {culprits[0].role}: does it answer, does its log show the request? Then {STEPS['stuck']}",),
    )


def _hang(graph: Graph, targets: Mapping[int, set[int]], found: Mapping[int, Kind], gone: Sequence[int]) -> Hang:
    culprits: list[Culprit] = []
    for pid, kind in found.items():
        one = graph.by_pid[pid]
        into = [graph.by_pid[other] for other, some in targets.items() if pid in some]
        waiters = tuple(sorted(other.rank for other in into if other.rank is not None))
        if pid in graph.addresses and kind in ("behind", "stuck"):
            server = f"server at {graph.addresses[pid]}"
            culprits.append(
                Culprit(rank=None, kind="stuck", call=call_of(one), role=server, waited_for_by=_rank_of(one))
            )
            continue
        call = graph.inside.get(pid) or (f"{one.hindrance}: " if one.hindrance else "") + call_of(one)
        culprits.append(
            Culprit(
                rank=one.rank, kind=kind, call=call, stack=stack_of(one), role=one.role, waited_for_by=waiters, pid=pid
            )
        )
    if not any(one.rank is not None and one.kind in ("stopped", "gil", "gone") for one in culprits) or not culprits:
        culprits += [Culprit(rank=rank, kind="gone", call="no process of this rank is here") for rank in gone]
    if gone:
        # Ranks that wait in a collective for one that is gone hold nothing up themselves.
        culprits = [one for one in culprits if one.pid not in graph.inside]
    kinds: dict[Kind, None] = dict.fromkeys(one.kind for one in culprits)
    names = [_name(one) for one in culprits]
    count = len(set(targets) - set(found)) or len(graph.inside)
    wait = "process waits" if count == 1 else "processes wait"
    return Hang(
        said=f"{count} {wait} for {', '.join(names[:8])}{_why(culprits)}",
        culprits=tuple(culprits),
        waits=tuple(
            _wait(graph, pid, some, gone)
            for pid, some in sorted({pid: targets.get(pid, set[int]()) for pid in {*targets, *graph.inside}}.items())
        ),
        missing=tuple(gone),
        steps=tuple(
            f"{', '.join(_name(one) for one in culprits if one.kind == kind)}: {STEPS[kind]}" for kind in kinds
        ),
    )


def _rank_of(one: Process) -> tuple[int, ...]:
    return () if one.rank is None else (one.rank,)


_WHY: Mapping[str, str] = {
    "stopped": "which is stopped",
    "gone": "whose process is gone",
    "gil": "in which a thread keeps the interpreter lock",
    "behind": "which is not in the call that they are in",
    "mismatch": "which has called something else than they",
    "stuck": "which does not go on",
    "circle": "each of the other",
}


def _why(culprits: Sequence[Culprit]) -> str:
    kinds = {one.kind for one in culprits}
    return f", {_WHY.get(kinds.pop(), 'which does not go on')}" if len(culprits) == 1 else ""


def _name(one: Culprit) -> str:
    place = f" (process {one.pid})" if one.pid else ""
    return (ranks_words((one.rank,)) if one.rank is not None else one.role) + place


def _wait(graph: Graph, pid: int, some: set[int], gone: Sequence[int] = ()) -> Wait:
    one = graph.by_pid[pid]
    others = [graph.by_pid[other] for other in sorted(some)]
    ranks = sorted(
        {*(other.rank for other in others if other.rank is not None), *(gone if pid in graph.inside else ())}
    )
    whom = tuple(map(who, others)) + ((graph.addresses[pid],) if pid in graph.addresses else ())
    return Wait(
        rank=one.rank,
        call=graph.inside.get(pid) or call_of(one),
        group="",
        waits_for=tuple(ranks),
        who=who(one),
        whom=whom,
    )


# One process


def who(one: Process) -> str:
    """`rank 3`, `reward (process 4711)`."""
    return f"rank {one.rank}" if one.rank is not None else f"{one.role} (process {one.pid})"


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


def moves(one: Process) -> bool:
    """Whether it went on between the looks: its working threads are elsewhere, or it computes."""
    if one.hindrance or holds_lock(one):
        return False
    seen = {tuple((thread.tid, thread.frames) for thread in look if not _idle(thread)) for look in one.looks}
    return len(seen) > 1 or (
        one.cpu_share > _BUSY and not (one.looks and one.looks[-1] and collective(one.looks[-1][0]))
    )


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
