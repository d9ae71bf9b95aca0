"""From dumps to who waits for whom.

A rank with an open collective waits for each rank of the group that has not queued it; with an open send or receive,
for the other side where that has not queued its own. Ranks that others wait for and that wait for nobody hold the job
up; where there are none, those of a circle; where nobody waits for a rank that is behind, the call itself does not end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from rlcheck.diagnose.hang.dumps import Call, Dump
from rlcheck.diagnose.hang.graph import bottoms, ranks_words
from rlcheck.diagnose.hang.stacks import Stack
from rlcheck.facts.hang import Culprit, Hang, Kind, Wait

Group = tuple[str, tuple[int, ...]]
"""A group's key and its ranks: two jobs of one directory may number theirs alike."""
_SAME_SIZES = frozenset(("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"))
"""Of these all ranks give the same size; of others each may give its own."""
_MOST_MISSING = 0.25
"""Where more of the ranks left no dump, that is how the dumps were gathered, and says nothing of a rank."""
_MOST_WAITS = 1_000


@dataclass(frozen=True)
class Edge:
    """RANK waits in CALL of GROUP for TARGET; KIND: why that one is to blame."""

    rank: int
    target: int
    call: Call
    group: str
    kind: Kind


class Job:
    """The dumps of one job, by rank."""

    def __init__(self, dumps: Iterable[Dump]) -> None:
        self.dumps = {dump.rank: dump for dump in dumps}
        self.open: dict[int, list[Call]] = {
            rank: [call for call in dump.calls if call.open] for rank, dump in self.dumps.items()
        }
        self._names = {key: name for dump in self.dumps.values() for key, name in dump.names.items()}
        self._groups = {
            rank: {key: ranks for key, ranks in dump.groups.items() if rank in ranks}
            for rank, dump in self.dumps.items()
        }
        self._seen: dict[str, set[int]] = defaultdict(set)
        for rank, dump in self.dumps.items():
            for call in dump.calls:
                self._seen[call.group].add(rank)
                self._names.setdefault(call.group, call.desc)
        self._reached: dict[tuple[int, str], int] = {}

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Ranks that groups name and that left no dump."""
        named = {rank for dump in self.dumps.values() for ranks in dump.groups.values() for rank in ranks}
        return tuple(sorted(named - set(self.dumps)))

    def name(self, group: str) -> str:
        """What the job calls a group."""
        return self._names.get(group) or group

    def members(self, rank: int, group: str) -> tuple[int, ...]:
        """The ranks of GROUP, as RANK knows it; gloo's recorder does not say, so those that have called in it, and all
        of the whole job's group.
        """
        if group in self._groups[rank]:
            return self._groups[rank][group]
        everyone = self.dumps if self.name(group) == "default_pg" else self._seen[group]
        return tuple(sorted({*everyone, *(self.missing if self.name(group) == "default_pg" else ())}))

    def reached(self, rank: int, group: str) -> int:
        """The last collective that RANK has queued in GROUP; 0: none that is known."""
        key = (rank, group)
        if key not in self._reached:
            numbers = [call.number for call in self.dumps[rank].calls if call.group == group and call.peer is None]
            self._reached[key] = max([*numbers, self.dumps[rank].enqueued.get(group, 0)])
        return self._reached[key]

    # Waiting

    def edges(self) -> list[Edge]:
        """Who waits for whom."""
        found: list[Edge] = []
        for rank, calls in self.open.items():
            latest: dict[str, Call] = {}
            for call in calls:
                if call.peer is None and call.number >= latest.get(call.group, call).number:
                    latest[call.group] = call
            for call in latest.values():
                found += self._behind(rank, call)
            found += self._unpaired(rank, [call for call in calls if call.peer is not None])
        return [*found, *self._mismatches(), *self._not_started(found)]

    def _behind(self, rank: int, call: Call) -> list[Edge]:
        members = [one for one in self.members(rank, call.group) if one != rank]
        behind = [one for one in members if one in self.dumps and self.reached(one, call.group) < call.number]
        if behind:
            return [Edge(rank, one, call, call.group, "behind") for one in behind]
        # A rank without a dump is to blame only where all others are there.
        return [Edge(rank, one, call, call.group, "no dump") for one in members if one not in self.dumps]

    def _unpaired(self, rank: int, calls: Sequence[Call]) -> list[Edge]:
        found: list[Edge] = []
        wanted: dict[tuple[str, int, bool], list[Call]] = defaultdict(list)
        for call in calls:
            members = self.members(rank, call.group)
            if call.peer is not None and call.peer < len(members):
                wanted[call.group, members[call.peer], call.sends].append(call)
        for (group, peer, sends), own in wanted.items():
            if peer not in self.dumps:
                found.append(Edge(rank, peer, own[0], group, "no dump"))
                continue
            place = self.members(peer, group).index(rank) if rank in self.members(peer, group) else -1
            theirs = [call for call in self.open[peer] if call.group == group and call.peer == place]
            if sum(call.sends != sends for call in theirs) < len(own):
                found.append(Edge(rank, peer, own[-1], group, "behind"))
        return found

    def lacking(self, edge: Edge) -> Call:
        """The first call of EDGE's rank, in its group, that the target has not made."""
        if edge.call.peer is not None:
            return edge.call
        last = self.reached(edge.target, edge.group) if edge.target in self.dumps else 0
        calls = [one for one in self.open[edge.rank] if one.group == edge.group and one.number > last and not one.peer]
        return min(calls, key=lambda one: one.number, default=edge.call)

    def _mismatches(self) -> list[Edge]:
        """At one number of one group, ranks that called something else than most."""
        at: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
        for rank, calls in self.open.items():
            for call in calls:
                if call.peer is None:
                    at[call.group, call.number].setdefault(rank, call)
        found: list[Edge] = []
        for (group, _), calls in sorted(at.items()):
            kinds = Counter(_kind(call) for call in calls.values())
            if len(kinds) < 2:
                continue
            usual, often = kinds.most_common(1)[0]
            unclear = sum(count == often for count in kinds.values()) > 1
            odd = [rank for rank, call in calls.items() if unclear or _kind(call) != usual]
            for rank, call in calls.items():
                found += [Edge(rank, one, call, group, "mismatch") for one in odd if one != rank]
            break
        return found

    def _not_started(self, behind: Sequence[Edge]) -> list[Edge]:
        """Where all have queued a call, and the GPUs of most have begun it: those of the others are held up."""
        if behind:
            return []
        at: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
        for rank, calls in self.open.items():
            for call in calls:
                if call.peer is None:
                    at[call.group, call.number][rank] = call
        found: list[Edge] = []
        for (group, _), calls in at.items():
            begun = [rank for rank, call in calls.items() if call.state == "started"]
            for late in (rank for rank, call in calls.items() if call.state == "scheduled"):
                found += [Edge(rank, late, calls[rank], group, "not started") for rank in begun]
        return found


def _kind(call: Call) -> tuple[object, ...]:
    return (call.name, call.sizes, call.dtypes) if call.name in _SAME_SIZES else (call.name,)


def solve(dumps: Sequence[Dump]) -> Hang | None:
    """The verdict of DUMPS, at most one of a rank; None where no call is open."""
    job = Job(dumps)
    waiting = {rank: calls for rank, calls in job.open.items() if calls}
    if not waiting:
        return None
    edges = job.edges()
    culprits = _culprits(job, edges)
    waits = _waits(job, edges, {one.rank for one in culprits}) or _inside(job, waiting)
    return Hang(
        said=_said(job, culprits, waits),
        steps=_steps(culprits),
        culprits=culprits,
        waits=waits[:_MOST_WAITS],
        dumps=len(job.dumps),
        missing=job.missing,
        longest_s=_longest(dumps),
    )


def of_stacks(stacks: Sequence[Stack]) -> Hang | None:
    """The verdict where there are no dumps: ranks that are in work of their own while others are in a collective."""
    within = {stack.rank: stack for stack in stacks if stack.in_collective}
    outside = {stack.rank: stack for stack in stacks if not stack.in_collective and stack.rank not in within}
    if not within or not outside or len(outside) > len(within):
        return None
    ranks = tuple(sorted(outside))
    culprits = [
        Culprit(
            rank, "behind", call=one.frames[0], stack=one.frames, role=one.role, waited_for_by=tuple(sorted(within))
        )
        for rank, one in sorted(outside.items())
    ]
    return Hang(
        said=f"{len(within)} of {len(stacks)} ranks are in a collective, {ranks_words(ranks)} in work of its own",
        culprits=tuple(culprits),
        waits=tuple(Wait(rank, one.frames[0], "", ranks) for rank, one in sorted(within.items())),
        steps=_steps(culprits),
    )


def with_stacks(hang: Hang, stacks: Sequence[Stack]) -> Hang:
    """HANG, with where its culprits are."""
    by_rank = {stack.rank: stack for stack in stacks}
    culprits = tuple(
        replace(one, stack=by_rank[one.rank].frames, role=one.role or by_rank[one.rank].role)
        if one.rank in by_rank
        else one
        for one in hang.culprits
    )
    return replace(hang, culprits=culprits)


def _culprits(job: Job, edges: Sequence[Edge]) -> tuple[Culprit, ...]:
    mismatch = [edge for edge in edges if edge.kind == "mismatch"]
    plain = [edge for edge in edges if edge.kind != "mismatch"]
    targets: dict[int, set[int]] = defaultdict(set)
    for edge in plain:
        targets[edge.rank].add(edge.target)
    ends = bottoms(targets)
    missing, known = set(job.missing), [end for end in ends if end[0] in job.dumps]
    if known and len(missing) > _MOST_MISSING * (len(missing) + len(job.dumps)):
        ends = known
    found: dict[int, Culprit] = {}
    for bottom in ends:
        for rank in bottom:
            into = [edge for edge in plain if edge.target == rank]
            kind: Kind = "circle" if len(bottom) > 1 else into[0].kind
            found[rank] = _culprit(job, rank, kind, into)
    for edge in mismatch:
        # Who has called something else may wait for one that is behind: then it only follows.
        if edge.target not in targets or not ends:
            found[edge.target] = _culprit(
                job, edge.target, "mismatch", [one for one in mismatch if one.target == edge.target]
            )
    return tuple(found[rank] for rank in sorted(found))


def _culprit(job: Job, rank: int, kind: Kind, into: Sequence[Edge]) -> Culprit:
    dump, own = job.dumps.get(rank), job.open.get(rank, [])
    call = None if dump is None or not dump.calls else max(dump.calls, key=lambda one: (one.created_ns, one.order))
    if kind in ("circle", "mismatch", "not started"):
        groups = {edge.group for edge in into}
        call = next((one for one in own if one.group in groups), call)
    lacks = [edge for edge in into if edge.kind in ("behind", "no dump")]
    calls = [job.lacking(edge) for edge in lacks]
    first = min(calls, key=lambda one: (one.peer is not None, one.created_ns, one.order), default=None)
    other_side = "the other side of " if first is not None and first.peer is not None else ""
    waiters = tuple(sorted({edge.rank for edge in into}))
    return Culprit(rank, kind, _words(job, call), lacks=other_side + _words(job, first), waited_for_by=waiters)


def _words(job: Job, call: Call | None) -> str:
    """`all_reduce 163 of default_pg at train.py:88 in step`."""
    if call is None:
        return ""
    number = "" if call.peer is not None else f" {call.number}"
    to = "" if call.peer is None else f" {'to' if call.sends else 'from'} its rank {call.peer}"
    frame = next((frame for frame in call.frames if "distributed_c10d" not in frame and "c10d_logger" not in frame), "")
    return f"{call.name}{number}{to} of {job.name(call.group)}" + (f" at {frame}" if frame else "")


def _waits(job: Job, edges: Sequence[Edge], culprits: set[int | None]) -> tuple[Wait, ...]:
    """Those that wait for CULPRITS first."""
    grouped: dict[tuple[int, str, int], list[Edge]] = defaultdict(list)
    for edge in edges:
        grouped[edge.rank, edge.group, edge.call.order].append(edge)
    found = [
        Wait(rank, _words(job, some[0].call), job.name(group), tuple(sorted({edge.target for edge in some})))
        for (rank, group, _), some in sorted(grouped.items())
    ]
    return tuple(sorted(found, key=lambda wait: not culprits.intersection(wait.waits_for)))


def _inside(job: Job, waiting: Mapping[int, Sequence[Call]]) -> tuple[Wait, ...]:
    return tuple(
        Wait(rank, _words(job, calls[0]), job.name(calls[0].group), ()) for rank, calls in sorted(waiting.items())
    )


def _longest(dumps: Sequence[Dump]) -> float | None:
    """From the first open call to the last thing that any recorder noted."""
    begun = [call.created_ns for dump in dumps for call in dump.calls if call.open and call.created_ns]
    noted = [max(call.created_ns, call.finished_ns) for dump in dumps for call in dump.calls]
    return round((max(noted) - min(begun)) / 1e9, 1) if begun and noted else None


_WHY: Mapping[Kind, str] = {
    "behind": "has not called what they wait in",
    "mismatch": "has called something else than they",
    "no dump": "left no dump",
    "not started": "has queued the call, and its GPU has not begun it",
    "circle": "waits for them in turn",
    "inside": "is in the same call",
}


_STEPS: Mapping[Kind, str] = {
    "behind": "look where it is: py-spy dump --pid PID on its node, and in its log: it waits, loops or is stopped",
    "mismatch": "compare the code paths of these ranks: a branch, a batch or a shape that differs between ranks",
    "no dump": "look whether its process lives, and in its log and its node's kernel log for what ended it",
    "not started": "look at its GPU: nvidia-smi, dmesg for Xid; a kernel before the call does not end",
    "circle": "give all ranks the same order of calls over all groups; threads that call in turn do this",
    "inside": "run rlcheck nccl on these nodes: links, GPUs and drivers are what is left",
}


def _steps(culprits: Sequence[Culprit]) -> tuple[str, ...]:
    found: list[str] = []
    kinds: dict[Kind, None] = dict.fromkeys(one.kind for one in culprits)
    for kind in kinds:
        ranks = [one.rank for one in culprits if one.kind == kind]
        found.append(f"{ranks_words(ranks)}: {_STEPS[kind]}")
    return tuple(found) or (_STEPS["inside"],)


def _said(job: Job, culprits: Sequence[Culprit], waits: Sequence[Wait]) -> str:
    if not culprits:
        calls = Counter(wait.call for wait in waits)
        call, count = calls.most_common(1)[0]
        return (
            f"{count} of {len(job.dumps)} ranks are in {call}, which all its ranks have called and which does not end: "
            "the ranks wait for the network, a GPU or a driver, not for each other's code"
        )
    if all(one.kind == "circle" for one in culprits):
        return f"{ranks_words([one.rank for one in culprits])} wait for each other in a circle"
    waiting = {wait.rank for wait in waits} - {one.rank for one in culprits}
    words = f"{len(waiting)} of {len(job.dumps)} ranks wait for {ranks_words([one.rank for one in culprits])}"
    return words + (f", which {_WHY[culprits[0].kind]}" if len(culprits) == 1 else "")
