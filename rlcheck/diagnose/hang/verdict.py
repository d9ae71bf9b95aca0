"""The verdict on a hung job in words: who holds it up, who waits in what, and what to do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from rlcheck.diagnose.hang.graph import Stack, bottoms, ranks_words
from rlcheck.diagnose.hang.waits import Edge, Job
from rlcheck.facts.flight import Call, Dump
from rlcheck.facts.hang import Culprit, Hang, Kind, Wait

_MOST_MISSING = 0.25
"""Where more of the ranks left no dump, that is how the dumps were gathered, and says nothing of a rank."""
_MOST_WAITS = 1_000


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
    if kind in ("circle", "not started"):
        groups = {edge.group for edge in into}
        call = next((one for one in own if one.group in groups), call)
    if kind == "mismatch":
        return _of_mismatch(job, rank, into)
    lacks = [edge for edge in into if edge.kind in ("behind", "no dump")]
    calls = [job.lacking(edge) for edge in lacks]
    first = min(calls, key=lambda one: (one.peer is not None, one.created_ns, one.order), default=None)
    other_side = "the other side of " if first is not None and first.peer is not None else ""
    waiters = tuple(sorted({edge.rank for edge in into}))
    return Culprit(rank, kind, _words(job, call), lacks=other_side + _words(job, first), waited_for_by=waiters)


def _of_mismatch(job: Job, rank: int, into: Sequence[Edge]) -> Culprit:
    """RANK, which has called something else than those of INTO at one number; with sizes, if the call is the same."""
    own, other = job.called(into[0].group, into[0].call.number)[rank], into[0].call
    same = own.name == other.name
    words = [_words(job, one) + (f" with {_sizes(one)}" if same else "") for one in (own, other)]
    return Culprit(
        rank,
        "mismatch",
        f"{words[0]}; rank {into[0].rank}: {words[1]}",
        waited_for_by=tuple(sorted({e.rank for e in into})),
    )


def _sizes(call: Call) -> str:
    """`[1024, 8] Float`, of the first tensors."""
    return ", ".join(" ".join([str(list(sizes)), *call.dtypes[at : at + 1]]) for at, sizes in enumerate(call.sizes[:2]))


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
        _wait(job, rank, some[0].call, sorted({edge.target for edge in some}))
        for (rank, _, _), some in sorted(grouped.items())
    ]
    return tuple(sorted(found, key=lambda wait: not culprits.intersection(wait.waits_for)))


def _wait(job: Job, rank: int, call: Call, targets: Sequence[int]) -> Wait:
    whom = tuple(ranks_words((one,)) for one in targets)
    return Wait(rank, _words(job, call), job.name(call.group), tuple(targets), who=f"rank {rank}", whom=whom)


def _inside(job: Job, waiting: Mapping[int, Sequence[Call]]) -> tuple[Wait, ...]:
    return tuple(_wait(job, rank, calls[0], ()) for rank, calls in sorted(waiting.items()))


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
