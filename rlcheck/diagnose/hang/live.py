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

from msgspec.structs import replace

from rlcheck.diagnose.hang.graph import bottoms, ranks_words
from rlcheck.diagnose.hang.seen import (
    BUSY,
    call_of,
    collective,
    goes_on,
    holds_lock,
    moves,
    restless,
    stack_of,
    who,
    working,
)
from rlcheck.diagnose.hang.verdict import solve
from rlcheck.facts.hang import Culprit, Hang, HangFacts, Kind, Peer, Process, Wait

_RAY_WAITS = re.compile(r"ray/_private/worker\.py:\d+ in (\w+\.)?(get|wait|get_objects)$")
_LONG_S = 60.0
"""A call that was queued so long ago does not end; GPUs that are behind by less may catch up."""
_ASK = "flight recorders that can be asked would tell (docs/diagnose.md), or a longer look: --for 60"
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
    unseen: set[int] = field(default_factory=set[int])
    """Who waits in Ray for an actor that was not seen to run a method."""

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
            self._of_ray(one)

    def _of_ray(self, one: Process) -> None:
        """Actors that run a method, and those that could not begin one."""
        actors = [other for other in self.facts.processes if other.pid != one.pid and other.title.startswith("ray::")]
        found = {other.pid for other in actors if other.runs or other.hindrance}
        self.edges[one.pid] |= found
        if not found:
            self.unseen.add(one.pid)

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
    of_recorders = _of_recorders(graph)
    if of_recorders is not None:
        return of_recorders
    targets = {pid: found for pid, found in graph.edges.items() if found}
    stopped = [one.pid for one in facts.processes if one.hindrance in _ALONE and one.role != "launcher"]
    locked = [
        one.pid
        for one in facts.processes
        if one.rank is not None and not one.hindrance and holds_lock(one) and one.cpu_share < BUSY
    ]
    ends = bottoms(targets)
    found: dict[int, Kind] = {}
    moving: list[Process] = []
    lost: list[Process] = []
    for end in ends:
        for pid in end:
            one = graph.by_pid[pid]
            if one.hindrance:
                found[pid] = "gone" if one.hindrance in ("dead", "gone") else "stopped"
            elif holds_lock(one):
                found[pid] = "gil"
            elif pid in graph.unseen and not graph.addresses.get(pid):
                lost.append(one)
            elif moves(one):
                moving.append(one)
            elif not one.looks:
                return Judged(doubt=f"{who(one)} is waited for, and its stack cannot be seen")
            else:
                found[pid] = graph.kinds.get(pid, "circle" if len(end) > 1 else "stuck")
    found |= {pid: "stopped" for pid in stopped if graph.by_pid[pid].hindrance != "waits in the kernel" or not found}
    found |= dict.fromkeys(locked, "gil")
    if lost and not found and not moving:
        return Judged(doubt=f"{who(lost[0])} waits in Ray for an actor that was not seen at work: on another node?")
    return _judged(facts, graph, targets, found, moving)


def _judged(
    facts: HangFacts, graph: Graph, targets: Mapping[int, set[int]], found: dict[int, Kind], moving: Sequence[Process]
) -> Judged:
    still = [one for one in facts.processes if one.looks and not moves(one) and not one.hindrance]
    waiting = [one for one in still if one.pid in graph.inside or one.pid in graph.edges or one.pid in graph.addresses]
    gone = facts.missing if any(one.pid in graph.inside for one in still) else ()
    if found or gone:
        return Judged(hang=_hang(graph, targets, found, gone))
    # A thread in a collective sleeps until it ends: ranks that wake up there go from call to call.
    cycles = any(restless(graph.by_pid[pid]) for pid in graph.inside)
    on = [one for one in moving if goes_on(one) or (cycles and restless(one))]
    if on:
        return Judged(said=f"the job waits for {', '.join(map(who, on[:4]))}, which goes on: {call_of(on[0])}")
    if moving:
        return Judged(doubt=_in_one_place(facts, moving[0]))
    outward = [one for one in waiting if one.pid in graph.addresses and not targets.get(one.pid)]
    if outward:
        return Judged(hang=_outward(graph, targets, outward))
    if not any(one.looks for one in facts.processes):
        return Judged(doubt="no stack of any process could be seen")
    within = [one for one in still if one.pid in graph.inside]
    if not cycles and within and len(within) == len([one for one in facts.processes if one.rank is not None]):
        return _all_inside(facts, graph, within)
    # A launcher or a logger that moves says nothing of ranks that do not.
    ranks = [one for one in facts.processes if one.rank is not None]
    if cycles or any(map(goes_on, ranks or facts.processes)):
        return Judged(said="processes of the job move")
    computing = next(filter(moves, ranks or facts.processes), None)
    if computing is not None:
        return Judged(doubt=_in_one_place(facts, computing))
    what = "no rank" if any(map(moves, facts.processes)) else "nothing"
    return Judged(doubt=f"{what} moved for {facts.watched_s:.0f} s, and none was seen to wait for another process")


def _of_recorders(graph: Graph) -> Judged | None:
    """What flight recorders say where stacks do not tell the ranks apart; None where they do not, either."""
    ranks = {one.rank: one for one in graph.facts.processes if one.rank is not None}
    if graph.facts.went_on:
        return Judged(said="the ranks' flight recorders show new calls")
    hang = solve(graph.facts.recorded) if graph.facts.recorded else None
    if hang is None:
        return None
    # That a rank gave no dump in time says nothing of one whose process is seen.
    named = [one for one in hang.culprits if one.kind != "no dump"]
    busy = [one.rank for one in named if one.rank in ranks and one.kind == "behind" and moves(ranks[one.rank])]
    if busy:
        return Judged(doubt=_in_one_place(graph.facts, ranks[busy[0]]))
    if named:
        known = [
            replace(one, pid=ranks[one.rank].number, stack=stack_of(ranks[one.rank]), node=ranks[one.rank].node)
            if one.rank in ranks
            else one
            for one in named
        ]
        return Judged(hang=replace(hang, culprits=tuple(known)))
    if (graph.facts.open_s or 0.0) > _LONG_S and len(graph.facts.recorded) == len(ranks):
        return Judged(hang=replace(hang, culprits=()))
    return None


def _in_one_place(facts: HangFacts, one: Process) -> str:
    """Why ONE, which uses its CPU and did not leave a line, is neither accused nor called well."""
    does = "has woken up again and again" if restless(one) else "has used its CPU"
    place = f"{who(one)} {does} in one place for {facts.watched_s:.0f} s ({call_of(one)})"
    return f"{place}: it computes, polls, or waits for a GPU; {_ASK}"


def _all_inside(facts: HangFacts, graph: Graph, within: Sequence[Process]) -> Judged:
    """All ranks here are in one call, and none of them moves."""
    if facts.elsewhere:
        return Judged(doubt="all ranks here wait in a collective; whom for is seen on the other nodes")
    if any(one.cpu_share > BUSY for one in within):
        return Judged(doubt=f"all ranks are in one call and use their CPUs in it, as with GPUs at work; {_ASK}")
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
                rank=one.rank,
                kind=kind,
                call=call,
                stack=stack_of(one),
                role=one.role,
                node=one.node,
                waited_for_by=waiters,
                pid=one.number,
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
    whom = f"{', '.join(names[:8])}{_why(culprits)}"
    return Hang(
        said=f"{count} {wait} for {whom}" if count else f"no process was seen to wait for {whom}",
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
    on = f" on {one.node}" if one.node else ""
    place = f" (process {one.pid}{on})" if one.pid else on
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
