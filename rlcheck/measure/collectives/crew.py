"""The processes of all ranks: starting them through the agents, their messages, killing and replacing them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rlcheck.measure.cluster.program import remote_sources, sources_of
from rlcheck.measure.cluster.switchboard import Lost, Switchboard

_DIRECTORY = Path(__file__).resolve().parents[2] / "remote" / "collectives"
_PACKAGE = "rlcheck_collectives"
_EVENTS_S = 0.1
_MOST_STARTS = 6
HELLO_S = 90.0
_LATE_S = 15.0
"""Ranks of one run start together: who takes so much longer than most, or four times as long, is stuck."""
_NOISE = ("The hostname of the client socket cannot be retrieved",)
"""What torch prints on stderr wherever addresses have no names; it explains nothing."""
"""Importing torch from a cold network file system takes this long; a warm one takes two seconds."""
_TAIL_LINES = 12
_TAIL_S = 2.0
_START_S = 10.0

Handler = Callable[[int, dict[str, Any]], None]


@dataclass(eq=False)
class Process:
    """One rank: where it sits, and the process that plays it now. `ended` is how that ended, "" while it runs.

    `gone` is why the rank takes no part any more.
    """

    rank: int
    seat: int
    node: str
    local_rank: int
    key: str = ""
    num_starts: int = 0
    hello: dict[str, Any] = field(default_factory=dict[str, Any])
    ended: str = ""
    gone: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether it waits for work."""
        return bool(self.hello) and not self.ended and not self.gone


@cache
def _sources() -> dict[str, str]:
    return {**sources_of(_DIRECTORY, _PACKAGE), f"{_PACKAGE}.ras": remote_sources("ras")["ras"]}


class Crew:
    """All ranks of a measurement.

    Args:
        board: the agents.
        interfaces: by seat, the interface that carries the seat's address; "" leaves the choice to gloo.
        python: the interpreter for the ranks, "" for the agent's own.
    """

    def __init__(self, board: Switchboard, interfaces: Mapping[int, str], python: str) -> None:
        self.board = board
        self.interfaces = interfaces
        self.python = python
        self.backend = "auto"
        self.processes: list[Process] = []
        self._by_key: dict[tuple[int, str], Process] = {}

    def add(self, places: Iterable[tuple[int, int]]) -> list[Process]:
        """New ranks at these seats with these local ranks, started at once."""
        new: list[Process] = []
        for seat, local_rank in places:
            place = self.board.seats[seat]
            new.append(Process(len(self.processes), seat, place.machine, local_rank))
            self.processes.append(new[-1])
        self.number()
        self._start(new)
        return new

    def drop(self, unwanted: Collection[Process]) -> None:
        """Kill these ranks and forget them."""
        for process in unwanted:
            self.kill(process)
        self.processes = [process for process in self.processes if process not in unwanted]
        self.number()

    def number(self) -> None:
        """Number the ranks by seat, then by device."""
        self.processes.sort(key=lambda process: (process.seat, process.local_rank))
        for rank, process in enumerate(self.processes):
            process.rank = rank

    def replace(self, ranks: Iterable[int]) -> None:
        """Kill these ranks and start fresh ones; what the old ones still say is not heard any more."""
        processes = [self.processes[rank] for rank in ranks]
        for process in processes:
            self.kill(process)
        self._start([process for process in processes if not process.gone])

    def _start(self, processes: Iterable[Process]) -> None:
        requests: dict[int, dict[str, Any]] = {}
        for process in processes:
            if process.seat in self.board.lost:
                process.gone = self.board.lost[process.seat]
            elif process.num_starts >= _MOST_STARTS:
                process.gone = f"ended {process.num_starts} times, at last: {process.ended or 'killed'}"
            else:
                requests[process.rank] = self._start_request(process)
        for rank, answer in self._ask_each(requests, _START_S).items():
            if isinstance(answer, Lost):
                self.processes[rank].gone = answer.reason

    def _start_request(self, process: Process) -> dict[str, Any]:
        process.num_starts += 1
        process.key = f"seat{process.seat}-{process.local_rank}.{process.num_starts}"
        process.hello, process.ended = {}, ""
        self._by_key[process.seat, process.key] = process
        environ = {"OMP_NUM_THREADS": "1"}
        if self.backend != "gloo":
            environ["RLCHECK_NCCL_LOG"] = f"{{temp}}/{process.key}.nccl"
        argument = {
            "backend": self.backend,
            "local_rank": process.local_rank,
            "interface": self.interfaces.get(process.seat, ""),
        }
        return {
            "do": "start_rank",
            "rank": process.key,
            "sources": _sources(),
            "entry": f"{_PACKAGE}.program:main",
            "environ": environ,
            "argument": argument,
            "python": self.python,
        }

    def kill(self, process: Process) -> None:
        """Kill the process of a rank."""
        if self._by_key.pop((process.seat, process.key), None) is not None and not process.ended:
            self.board.post(process.seat, {"do": "kill", "rank": process.key})

    def tell(self, rank: int, message: Mapping[str, Any]) -> None:
        """Send a rank a message."""
        process = self.processes[rank]
        self.board.post(process.seat, {"do": "tell", "rank": process.key, "message": dict(message)})

    def listen(self, handle: Handler, timeout_s: float = _EVENTS_S) -> None:
        """Hand on what ranks have said; waits up to `timeout_s` for the first.

        `handle` gets the rank and its message; an end comes as `{"at": "ended", "how": …, "last_lines": […]}`.
        """
        for seat, event in self.board.events(timeout_s):
            if event.get("event") == "lost":
                self._lose(seat, str(event.get("reason", "")), handle)
                continue
            process = self._by_key.get((seat, str(event.get("rank"))))
            if process is None:
                continue
            if event.get("event") == "rank_ended":
                process.ended = str(event["how"])
                lines = _telling(event.get("last_lines", []))
                handle(process.rank, {"at": "ended", "how": process.ended, "last_lines": lines})
            elif event.get("event") == "rank":
                self._hear(process, event["message"], handle)

    def _hear(self, process: Process, message: dict[str, Any], handle: Handler) -> None:
        if message.get("at") == "hello":
            process.hello = message
        elif message.get("at") == "unfit":
            process.gone = str(message["error"])
        handle(process.rank, message)

    def _lose(self, seat: int, reason: str, handle: Handler) -> None:
        for process in self.processes:
            if process.seat == seat and not process.gone:
                process.gone, process.ended = reason, reason
                handle(process.rank, {"at": "ended", "how": reason, "last_lines": []})

    def wait_ready(self, ranks: Collection[int], timeout_s: float = HELLO_S) -> list[int]:
        """Wait until these ranks have said hello; those that do not are out, with the reason in `gone`.

        Returns:
            the ranks that are ready.
        """
        started = time.monotonic()
        deadline = started + timeout_s

        def on_message(rank: int, message: dict[str, Any]) -> None:
            process = self.processes[rank]
            if message["at"] == "ended" and not process.gone:
                lines = [str(line) for line in message["last_lines"]]
                process.gone = f"could not start: {message['how']}" + (f", {lines[-1]}" if lines else "")

        waiting = [rank for rank in ranks if not self.processes[rank].gone]
        most_by = started
        while (now := time.monotonic()) < deadline:
            waiting = [r for r in waiting if not self.processes[r].is_ready and not self.processes[r].gone]
            if not waiting:
                break
            if 2 * len(waiting) > len(ranks):
                most_by = now
            elif now > most_by + max(_LATE_S, 3 * (most_by - started)):
                break
            self.listen(on_message)
        for rank in waiting:
            process = self.processes[rank]
            if not process.is_ready and not process.gone:
                process.gone = f"did not say hello within {time.monotonic() - started:.0f} s"
                self.kill(process)
        return [rank for rank in ranks if self.processes[rank].is_ready]

    def tails(self, ranks: Collection[int]) -> dict[int, tuple[str, ...]]:
        """The last lines of NCCL's log of these ranks, or of what they printed where there is no log."""
        found: dict[int, tuple[str, ...]] = {}
        logs = {r: {"do": "read", "path": f"{self.processes[r].key}.nccl", "limit_bytes": 1 << 14} for r in ranks}
        for rank, answer in self._ask_each(logs, _TAIL_S).items():
            found[rank] = () if isinstance(answer, Lost) else tuple(str(answer["text"]).splitlines()[-_TAIL_LINES:])
        rest = [rank for rank in ranks if not found.get(rank)]
        tails = {r: {"do": "tail", "rank": self.processes[r].key, "num_lines": _TAIL_LINES} for r in rest}
        for rank, answer in self._ask_each(tails, _TAIL_S).items():
            found[rank] = () if isinstance(answer, Lost) else tuple(_telling(answer["lines"]))
        return {rank: lines for rank, lines in found.items() if lines}

    def _ask_each(self, requests: Mapping[int, dict[str, Any]], timeout_s: float) -> dict[int, dict[str, Any] | Lost]:
        """One request per rank. A seat is asked one thing at a time, so ranks of one machine take turns."""
        found: dict[int, dict[str, Any] | Lost] = {}
        left = dict(requests)
        while left:
            turn: dict[int, int] = {}
            for rank in left:
                turn.setdefault(self.processes[rank].seat, rank)
            answers = self.board.ask({seat: left.pop(rank) for seat, rank in turn.items()}, timeout_s)
            found |= {rank: answers[seat] for seat, rank in turn.items()}
        return found

    def end(self) -> None:
        """Kill all ranks."""
        for process in self.processes:
            self.kill(process)


def _telling(lines: Iterable[Any]) -> list[str]:
    """The lines without those that are no news."""
    return [str(line) for line in lines if not any(noise in str(line) for noise in _NOISE)]
