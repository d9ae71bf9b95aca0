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

from rlcheck.facts.flight import Call, Dump
from rlcheck.facts.hang import Kind

Group = tuple[str, tuple[int, ...]]
"""A group's key and its ranks: two jobs of one directory may number theirs alike."""
_SAME_SIZES = frozenset(("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"))
"""Of these all ranks give the same size; of others each may give its own."""


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
        if self.differing.get(call.group, call.number) < call.number:
            # Who waits in a call that others made differently is not to blame for what comes after it.
            behind = [one for one in behind if self.reached(one, call.group) < self.differing[call.group]]
            if not behind:
                return []
        if behind:
            return [Edge(rank, one, call, call.group, "behind") for one in behind]
        # A rank without a dump is to blame only where all others are there.
        return [Edge(rank, one, call, call.group, "no dump") for one in members if one not in self.dumps]

    def _unpaired(self, rank: int, calls: Sequence[Call]) -> list[Edge]:
        found: list[Edge] = []
        wanted: dict[tuple[str, int, bool], list[Call]] = defaultdict(list)
        for call in calls:
            members = self.members(rank, call.group)
            if call.peer is not None and 0 <= call.peer < len(members):
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

    @cached_property
    def differing(self) -> dict[str, int]:
        """The first number of each group at which ranks called different things and one still waits."""
        found: dict[str, int] = {}
        for (group, number), calls in sorted(self._at.items()):
            kinds = {_kind(call) for call in calls.values()}
            if len(kinds) > 1 and any(call.open for call in calls.values()):
                found.setdefault(group, number)
        return found

    @cached_property
    def _at(self) -> dict[tuple[str, int], dict[int, Call]]:
        """The collectives of all ranks by group and number, finished ones too: on a GPU the smaller one may end."""
        found: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
        for rank, dump in self.dumps.items():
            for call in dump.calls:
                if call.peer is None:
                    found[call.group, call.number].setdefault(rank, call)
        return found

    def called(self, group: str, number: int) -> Mapping[int, Call]:
        """What each rank has called at NUMBER of GROUP."""
        return self._at[group, number]

    def _mismatches(self) -> list[Edge]:
        """At one number of one group, ranks that called something else than most."""
        for group, number in self.differing.items():
            calls = self._at[group, number]
            odd = self._odd(group, number, calls)
            return [
                Edge(rank, one, call, group, "mismatch") for rank, call in calls.items() for one in odd if one != rank
            ]
        return []

    def _odd(self, group: str, number: int, calls: Mapping[int, Call]) -> list[int]:
        """Who called something else than most; where that is nobody, something that the group has not called before."""
        kinds = Counter(_kind(call) for call in calls.values())
        usual, often = kinds.most_common(1)[0]
        if sum(count == often for count in kinds.values()) == 1:
            return [rank for rank, call in calls.items() if _kind(call) != usual]
        before = {
            _kind(call)
            for (key, earlier), some in self._at.items()
            if key == group and earlier < number
            for call in some.values()
        }
        new = [rank for rank, call in calls.items() if _kind(call) not in before]
        return new if 0 < len(new) < len(calls) else list(calls)

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
