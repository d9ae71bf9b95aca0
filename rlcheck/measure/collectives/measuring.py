"""The measurement: within each node, over pairs of nodes, over all. What hangs is found, recorded and left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, RasFacts, Stall
from rlcheck.measure.cluster.switchboard import Switchboard
from rlcheck.measure.collectives import attribution, plan, rounds
from rlcheck.measure.collectives.crew import Crew
from rlcheck.measure.collectives.group import INIT, Group, GroupPlan, run_together
from rlcheck.measure.collectives.muster import lost_of, muster, ranks_of
from rlcheck.measure.collectives.plan import Request, Step
from rlcheck.measure.collectives.results import group_run

__all__ = ["Request", "measure"]

Progress = Callable[[tuple[str, ...]], None]
_PATIENCE_S = 5.0
_PATIENCE_FACTOR = 4.0
"""A pair may take so many times what the slowest healthy pair took for the same step, and `_PATIENCE_S` in any case."""
_TRIAL_STEPS = 2
_AGAIN_ROUNDS = 4


def measure(board: Switchboard, request: Request, progress: Progress = lambda _: None) -> CollectiveFacts:
    """Run the collectives on the machines of `board`.

    Nothing is raised for what goes wrong over there: it is in the facts. No rank is left when this returns or raises.
    """
    started = time.monotonic()
    progress(("ranks to start",))
    crew = muster(board, request)
    try:
        measurement = Measurement(crew, request, progress)
        ranks = ranks_of(crew)
        measurement.run()
        return CollectiveFacts(
            launcher=request.launcher,
            backend="rccl"
            if any("hip" in rank.versions for rank in ranks) and crew.backend == "nccl"
            else crew.backend,
            ranks=ranks,
            lost=lost_of(crew),
            quick=request.quick,
            settings={p.node: p.hello["settings"] for p in reversed(crew.processes) if p.hello.get("settings")},
            groups=tuple(measurement.groups),
            ras=measurement.ras,
            cancelled=measurement.cancelled,
            seconds=time.monotonic() - started,
        )
    finally:
        crew.end()


class Measurement:
    """The phases, and what is known of the nodes so far. `broken` are nodes with a rank that was silent or died."""

    def __init__(self, crew: Crew, request: Request, progress: Progress) -> None:
        self.crew = crew
        self.request = request
        self.progress = progress
        self.groups: list[GroupRun] = []
        self.broken: set[str] = set()
        self.ras: Fact[RasFacts] = absent("NCCL did not run")
        self.cancelled = ""
        self._num_runs = 0
        self._used_up: set[int] = set()
        self._seen_s: dict[str, float] = {}
        free = min((int(p.hello["free_bytes"]) for p in crew.processes if p.is_ready), default=0)
        self.largest = plan.most_bytes(request, crew.backend, free)
        self.deadline_s = plan.deadline_s(request, crew.backend)

    def run(self) -> None:
        """All phases, in order."""
        nodes = self._nodes()
        if not nodes:
            self.cancelled = "no rank could be started"
            return
        self._within_nodes(nodes)
        if len(nodes) < 2:
            return
        pairs = plan.pairs_of(self.request, len(nodes))
        if pairs != "none":
            self._pairs(nodes, rounds.tournament(nodes) if pairs == "all" else rounds.quick(nodes))
        self._everybody(nodes)

    def _nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(process.node for process in self.crew.processes if not process.gone))

    def _ranks(self, nodes: Collection[str]) -> tuple[int, ...]:
        return tuple(p.rank for p in self.crew.processes if p.node in nodes and not p.gone)

    def _within_nodes(self, nodes: Sequence[str]) -> None:
        groups = [self._plan("node", (node,)) for node in nodes if len(self._ranks((node,))) > 1 or len(nodes) == 1]
        if groups:
            self.progress(("collectives within each node",) if len(nodes) > 1 else ("collectives",))
            self._run([replace(group, ask_ras=len(nodes) == 1) for group in groups])

    def _pairs(self, nodes: Sequence[str], turns: Sequence[Sequence[rounds.Pair]]) -> None:
        for number, pairs in enumerate(turns):
            self.progress((f"pairs of nodes, round {number + 1} of {len(turns)}",))
            self._run_pairs(pairs, number)
        mine = [group for group in self.groups if group.phase == "pair"]
        suspects = set(attribution.suspect_nodes(mine)) - self.broken
        if suspects:
            good = [node for node in nodes if node not in suspects | self.broken]
            met = [(group.nodes[0], group.nodes[-1]) for group in mine]
            known = {frozenset(pair) for pair in met}
            pairs = [pair for pair in rounds.again(suspects, good, met) if frozenset(pair) not in known]
            if pairs:
                self.progress(("suspects with new partners",))
                self._run_pairs(pairs, len(turns))
        self._pairs_again(len(turns) + 1)

    def _pairs_again(self, number: int) -> None:
        """Pairs that were slow once more: busy machines make noise, and nobody is to be named for that."""
        for turn in range(_AGAIN_ROUNDS):
            pairs = rounds.disjoint(attribution.worth_a_second_look(self.groups))
            if not pairs:
                return
            self.progress(("slow pairs once more",))
            self._run_pairs(pairs, number + turn)

    def _run_pairs(self, pairs: Sequence[rounds.Pair], number: int) -> None:
        """A round, without nodes that are known to be broken: they would only cost their partners a deadline."""
        left = [pair for pair in pairs if not self.broken & set(pair)]
        for group in self._run([self._hurry(replace(self._plan("pair", pair), round=number)) for pair in left]):
            if group.outcome == "fine":
                self._remember(group)

    def _remember(self, group: Group) -> None:
        for track in group.tracks.values():
            for name, result in track.results.items():
                took_s = float(result["seconds"] if name == INIT else result["took_s"])
                self._seen_s[name] = max(took_s, self._seen_s.get(name, 0.0))

    def _hurry(self, group: GroupPlan) -> GroupPlan:
        """Shorter deadlines, where other pairs have shown how long it takes."""

        def limit(name: str, deadline_s: float) -> float:
            if name not in self._seen_s:
                return deadline_s
            return min(deadline_s, max(_PATIENCE_S, _PATIENCE_FACTOR * self._seen_s[name]))

        steps = tuple(replace(step, deadline_s=limit(step.name, step.deadline_s)) for step in group.steps)
        return replace(group, steps=steps, init_deadline_s=limit(INIT, group.init_deadline_s))

    def _everybody(self, nodes: Sequence[str]) -> None:
        """All nodes; when that cannot be or is not right, also those that nothing is known against."""
        suspects = self._suspects()
        if self._lame() and not self._trial(nodes):
            self._all(nodes, without=suspects)
            return
        self.progress(("collectives over all nodes",))
        groups = self._run([replace(self._plan("all", nodes), ask_ras=True)])
        suspects |= self._suspects()
        if suspects - self._lame() or any(group.outcome != "fine" for group in groups):
            self._all(nodes, without=suspects)

    def _trial(self, nodes: Sequence[str]) -> bool:
        """Whether all nodes together at least begin, although some did not in pairs. Recorded when they do not."""
        self.progress(("all nodes together, although some failed in pairs",))
        group = self._plan("all", nodes)
        steps = tuple(replace(s, deadline_s=min(s.deadline_s, _PATIENCE_S)) for s in group.steps[:_TRIAL_STEPS])
        limit_s = min(group.init_deadline_s, max(_PATIENCE_S, _PATIENCE_FACTOR * self._seen_s.get(INIT, 0.0)))
        before = len(self.groups)
        done = self._run([replace(group, steps=steps, init_deadline_s=limit_s)])
        begins = all(group.outcome == "fine" for group in done)
        if begins:
            del self.groups[before:]
        return begins

    def _all(self, nodes: Sequence[str], without: Collection[str]) -> None:
        rest = tuple(node for node in nodes if node not in without)
        if 1 < len(rest) < len(nodes):
            self.progress(("collectives over all other nodes",))
            self._run([self._plan("all", rest)])

    def _lame(self) -> set[str]:
        """Nodes that could not take part in a group, as far as groups tell."""
        pairs = [g for g in self.groups if g.phase == "pair" and (g.stall or g.error)]
        named = set(attribution.suspect_nodes(self.groups))
        return self.broken | {node for group in pairs for node in group.nodes if node in named}

    def _suspects(self) -> set[str]:
        """Everybody that something is known against: broken, unreachable, slow, or wrong."""
        node_of = {process.rank: process.node for process in self.crew.processes}
        wrong = {node_of[rank] for g in self.groups for w in g.wrong if len(w.suspects) == 1 for rank in w.suspects}
        right = {node for g in self.groups if g.phase == "pair" and not g.wrong and g.samples for node in g.nodes}
        bad_pairs = {node for g in self.groups if g.phase == "pair" and g.wrong for node in g.nodes}
        return self.broken | set(attribution.suspect_nodes(self.groups)) | wrong | (bad_pairs - right)

    def _plan(self, phase: str, nodes: Sequence[str]) -> GroupPlan:
        ranks = self._ranks(nodes)
        # Devices are compared beside others of their machine; where each machine has one, beside another machine's.
        works = phase == "node" or (phase == "all" and all(len(self._ranks((node,))) == 1 for node in nodes))
        steps: tuple[Step, ...] = plan.steps(
            phase, self.request, self.crew.backend, len(ranks), self.largest, works=works
        )
        limit_s = plan.limit_s(phase, self.request)
        return GroupPlan(phase, tuple(nodes), ranks, steps, self.crew.backend, self.deadline_s, limit_s)

    def _run(self, plans: Sequence[GroupPlan]) -> list[Group]:
        """Measure these groups at the same time, with fresh ranks where the last group spoilt them, and record them."""
        wanted = {rank for group in plans for rank in group.ranks}
        self._note_deaths(wanted - self._used_up)
        self.crew.replace(sorted(wanted & self._used_up))
        self._used_up -= wanted
        self.crew.wait_ready(sorted(wanted))
        able = [self._of_the_living(group) for group in plans]
        self._num_runs += 1
        groups = run_together(self.crew, tuple(g for g in able if g.ranks), f"run{self._num_runs}")
        for group in groups:
            run = group_run(group, self.crew)
            self.groups.append(run)
            self._note(group, run)
            if group.outcome != "fine":
                self._used_up |= set(group.plan.ranks)
        return groups

    def _note_deaths(self, ranks: Collection[int]) -> None:
        """Who died while nothing was asked of it: on record before fresh ranks take over."""
        self.crew.listen(lambda rank, message: None, 0.0)
        for process in [self.crew.processes[rank] for rank in sorted(ranks)]:
            if process.ended and not process.gone:
                stall = Stall(step="waiting for a group", deadline_s=0.0, died={str(process.rank): process.ended})
                self.groups.append(GroupRun(phase="node", nodes=(process.node,), ranks=(process.rank,), stall=stall))
                self.broken.add(process.node)
                self._used_up.add(process.rank)

    def _of_the_living(self, group: GroupPlan) -> GroupPlan:
        """The group without ranks that are gone; empty when it makes no sense without them."""
        ranks = tuple(rank for rank in group.ranks if self.crew.processes[rank].is_ready)
        nodes = tuple(node for node in group.nodes if any(self.crew.processes[rank].node == node for rank in ranks))
        if group.phase == "pair" and len(nodes) < 2:
            ranks = ()
        return replace(group, ranks=ranks, nodes=nodes)

    def _note(self, group: Group, run: GroupRun) -> None:
        if run.stall is not None:
            names = (*run.stall.silent, *map(int, run.stall.died))
            self.broken |= {self.crew.processes[rank].node for rank in names}
        if group.ras.get("text"):
            problems = tuple(str(line) for line in group.ras["problems"])
            self.ras = known(RasFacts(version=group.ras["version"], text=group.ras["text"], problems=problems))
        elif group.plan.ask_ras and self.crew.backend == "nccl":
            self.ras = missing(MissingKind.ERROR, str(group.ras.get("error", "RAS did not answer")))
