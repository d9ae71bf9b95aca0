"""One group of ranks, from its first message to its result: which rank is at which step, and when that is too long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlcheck.measure.collectives.crew import Crew
from rlcheck.measure.collectives.plan import Step

INIT = "init"
_GRACE_S = 1.0
"""After the first error, for those that follow from it and for the end of a process that caused it."""
_STATUS_S = 1.5
LEAVE_S = 5.0
LEAVING = "leaving the group"
_RAS_S = 4.0
_CONCLUDE_AFTER_S = {"grace": _GRACE_S, "asking": _STATUS_S, "ras": _RAS_S + 1}
_LOGS = 16
"""Logs of so many ranks are read: enough for two machines of eight."""
_TORCH_EXTRA_S = 60.0
"""Torch's own timeout comes later than ours, so that nobody ends before he was asked where he is."""


@dataclass(frozen=True)
class GroupPlan:
    """A group to be measured: see GroupRun for phase, round and nodes. `ask_ras`: at the end, ask NCCL's RAS.

    When about `limit_s` are spent, what is dispensable is left out.
    """

    phase: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    steps: tuple[Step, ...]
    backend: str
    init_deadline_s: float
    limit_s: float
    round: int = -1
    ask_ras: bool = False


@dataclass
class RankTrack:
    """How far one rank has come. Numbers are positions in the list of steps, `init` being 0."""

    entered: int = -1
    left: int = -1
    results: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    error: str = ""
    ended: str = ""
    ended_lines: tuple[str, ...] = ()
    status: dict[str, Any] = field(default_factory=dict[str, Any])
    told: bool = False


class Group:
    """The state of one group; `listen` and `tick` move it on, nothing in here waits.

    `state` goes from opening (the leader makes the store) over running (init and steps) and leaving to done, or from
    anywhere over grace (an error) or asking (a deadline has passed) to done; ras comes before leaving, or before done.
    `outcome` is fine, error, stall, or `left badly` when only the taking apart failed.
    """

    def __init__(self, plan: GroupPlan, crew: Crew, key: str) -> None:
        self.plan = plan
        self.crew = crew
        self.key = key
        self.names = (INIT, *(step.name for step in plan.steps))
        self.deadlines = (plan.init_deadline_s, *(step.deadline_s for step in plan.steps))
        self.tracks = {rank: RankTrack() for rank in plan.ranks}
        self.started = time.monotonic()
        self.since = self.started
        self.state = "opening"
        self.outcome = "fine"
        self.step_index = 0
        self.first_error = ""
        self.seconds = -1.0
        self.ras: dict[str, Any] = {}
        self._num_checks = sum(not step.is_timed for step in plan.steps)
        self._ras_asked = not plan.ask_ras
        self._join(plan.ranks[0], 0)

    @property
    def is_done(self) -> bool:
        """Whether nothing more is awaited."""
        return self.state == "done"

    def _join(self, rank: int, port: int) -> None:
        leader = self.crew.processes[self.plan.ranks[0]]
        self.tracks[rank].told = True
        self.crew.tell(
            rank,
            {
                "do": "join",
                "group": self.key,
                "index": self.plan.ranks.index(rank),
                "size": len(self.plan.ranks),
                "backend": self.plan.backend,
                "store": {"host": self.crew.board.seats[leader.seat].address or "127.0.0.1", "port": port},
                "limit_s": self.plan.limit_s,
                "timeout_s": max(self.deadlines) + _TORCH_EXTRA_S,
            },
        )

    def listen(self, rank: int, message: Mapping[str, Any]) -> None:
        """Take in what a rank of this group says."""
        handlers: dict[str, Callable[[int, RankTrack, Mapping[str, Any]], None]] = {
            "store": self._on_store,
            "enter": self._on_enter,
            "leave": self._on_leave,
            "failed": self._on_failed,
            "ended": self._on_ended,
            "status": self._on_status,
            "left": self._on_left,
            "ras": self._on_ras,
        }
        handler = handlers.get(str(message.get("at")))
        if handler is not None and not self.is_done:
            handler(rank, self.tracks[rank], message)

    def _on_store(self, rank: int, track: RankTrack, message: Mapping[str, Any]) -> None:
        if self.state == "opening":
            self._go("running")
            for other in self.plan.ranks[1:]:
                self._join(other, int(message["port"]))

    def _on_enter(self, rank: int, track: RankTrack, message: Mapping[str, Any]) -> None:
        track.entered = self.names.index(str(message["step"]))

    def _on_leave(self, rank: int, track: RankTrack, message: Mapping[str, Any]) -> None:
        step = str(message["step"])
        track.left = self.names.index(step)
        track.results[step] = dict(message)
        # A leave that comes while others are asked counts for the record alone: the deadline was for all.
        slowest = min(other.left for other in self.tracks.values())
        if slowest < self.step_index or self.state != "running":
            return
        self.since = time.monotonic()
        self.step_index = slowest + 1
        if slowest == 0:
            self._run_steps([step for step in self.plan.steps if not step.is_timed])
        elif self.step_index == self._num_checks + 1 and not self._is_wrong():
            self._run_steps([step for step in self.plan.steps if step.is_timed])
        if self.step_index == len(self.names) or (self.step_index == self._num_checks + 1 and self._is_wrong()):
            self._conclude()

    def _is_wrong(self) -> bool:
        """Whether some result was wrong: then nothing is timed, as ranks agree by all_reduce how often they call."""
        return any(result.get("wrong") for track in self.tracks.values() for result in track.results.values())

    def _run_steps(self, steps: Sequence[Step]) -> None:
        for number, rank in enumerate(self.plan.ranks):
            messages = [step.message(with_log=number < _LOGS) for step in steps]
            self.crew.tell(rank, {"do": "run", "steps": messages})

    def _conclude(self) -> None:
        """All steps are done, or none can be any more."""
        if self.seconds < 0:
            self.seconds = time.monotonic() - self.started
        if not self._ras_asked:
            self._ras_asked = True
            self._go("ras")
            for rank in [rank for rank, track in self.tracks.items() if not track.ended][:1]:
                self.crew.tell(rank, {"do": "ras", "deadline_s": _RAS_S})
        elif self.outcome == "fine":
            self._go("leaving")
            for rank in self.plan.ranks:
                self.crew.tell(rank, {"do": "leave"})
        else:
            self._go("done")

    def _on_ras(self, rank: int, track: RankTrack, message: Mapping[str, Any]) -> None:
        self.ras = dict(message["answer"])
        if self.state == "ras":
            self._conclude()

    def _on_failed(self, rank: int, track: RankTrack, message: Mapping[str, Any]) -> None:
        track.error = str(message["error"])
        if not self.first_error:
            node = self.crew.processes[rank].node
            self.first_error = f"rank {rank} on {node}, {message.get('step', '')}: {track.error}"
        self._break_off("error")

    def _on_ended(self, rank: int, track: RankTrack, message: Mapping[str, Any]) -> None:
        track.ended = str(message["how"])
        track.ended_lines = tuple(str(line) for line in message.get("last_lines", ()))
        self._break_off("stall")

    def _break_off(self, outcome: str) -> None:
        if self.state == "leaving":  # the measurement itself is complete
            self.outcome = "left badly"
            self._go("done")
        elif self.state not in ("asking", "ras"):
            self.outcome = "stall" if "stall" in (outcome, self.outcome) else outcome
            if self.state != "grace":
                self._go("grace")

    def _on_status(self, rank: int, track: RankTrack, message: Mapping[str, Any]) -> None:
        track.status = dict(message)
        if self.state == "asking" and all(other.status or other.ended for other in self.tracks.values()):
            self._conclude()

    def _on_left(self, rank: int, track: RankTrack, message: Mapping[str, Any]) -> None:
        track.left = len(self.names)
        if all(other.left == len(self.names) for other in self.tracks.values()):
            self._go("done")

    def tick(self) -> None:
        """Look at the clock."""
        waited = time.monotonic() - self.since
        if self.state in ("opening", "running") and waited > self.deadlines[self.step_index]:
            self.outcome = "stall"
            self._ask_status()
        elif waited > _CONCLUDE_AFTER_S.get(self.state, waited):
            self._conclude()
        elif self.state == "leaving" and waited > LEAVE_S:
            self.outcome = "left badly"
            self._ask_status()

    def _ask_status(self) -> None:
        self._go("asking")
        for rank in self.plan.ranks:
            self.crew.tell(rank, {"do": "status"})

    def _go(self, state: str) -> None:
        self.state = state
        self.since = time.monotonic()


def run_together(crew: Crew, plans: tuple[GroupPlan, ...], name: str) -> list[Group]:
    """Measure groups that share no rank, all at the same time, each with its own deadlines."""
    groups = [Group(plan, crew, f"{name}.{number}") for number, plan in enumerate(plans)]
    group_of = {rank: group for group in groups for rank in group.plan.ranks}

    def on_message(rank: int, message: dict[str, Any]) -> None:
        if rank in group_of:
            group_of[rank].listen(rank, message)

    while not all(group.is_done for group in groups):
        crew.listen(on_message)
        for group in groups:
            group.tick()
    return groups
