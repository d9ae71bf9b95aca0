"""Talking with many agents at once, from one thread, without ever waiting past a deadline."""

from __future__ import annotations

import atexit
import contextlib
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from rlcheck.measure.cluster.link import Link, wait_all

Progress = Callable[[tuple[str, ...]], None]
Explain = Callable[["Seat", int | None, tuple[str, ...]], str]
_PROGRESS_S = 0.25
_QUIT_S, _TERMINATE_S = 1.0, 0.5


@dataclass(frozen=True)
class Seat:
    """One agent. `name` is what the user knows its machine by, `address` how others reach it ("" while unknown).

    `local_rank` is of ranks that somebody else started and gathered (-1 otherwise); `node` is the machine's name when
    several seats share one.
    """

    name: str
    address: str = ""
    node_id: str = ""
    is_head: bool = False
    local_rank: int = -1
    node: str = ""

    @property
    def machine(self) -> str:
        """The name of the machine, which several seats may share."""
        return self.node or self.name


@dataclass(frozen=True)
class Lost:
    """An answer that did not come, and why, in one line."""

    reason: str


@dataclass
class _State:
    """What is known of a seat: its link, its first message, when it came up and until when it may take to."""

    link: Link | None
    up_by: float
    hello: dict[str, Any]
    up_at: float = -1.0


def unique_names(words: Sequence[tuple[str, ...]]) -> list[str]:
    """A name for each: its first word, with as many of the others as tell it from those that begin alike."""
    names = [options[0] for options in words]
    for num in range(1, max(map(len, words), default=0)):
        times = Counter(names)
        names = [
            name if times[name] == 1 else f"{options[0]} ({', '.join(filter(None, options[1 : num + 1]))})"
            for name, options in zip(names, words, strict=True)
        ]
    times = Counter(names)
    return [name if times[name] == 1 else f"{name} #{index}" for index, name in enumerate(names)]


def explain_end(seat: Seat, code: int | None, lines: tuple[str, ...]) -> str:
    """Why a link ended, when nothing more is known about how it was made."""
    how = "" if code is None else f"exit {code}" if code >= 0 else f"signal {-code}"
    return "ended: " + (", ".join(part for part in (how, lines[-1] if lines else "") if part) or "it hung up")


class Switchboard:
    """The seats and the links to them. Not for several threads at once; messages are taken in while it is asked.

    Args:
        seats: the agents, in a stable order; their index is their number everywhere.
        links: the streams to them; a seat that no link serves is in `lost`.
        lost: seats that could not even be called, and why.
        up_within_s: an agent that has said nothing for so long is lost.
        stage: what an agent is waited for until then (`ssh to log in`).
        explain: words for a link that ended.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        links: Sequence[Link],
        lost: Mapping[int, str] = {},
        up_within_s: float = 20.0,
        stage: str = "the agent to start",
        explain: Explain = explain_end,
    ) -> None:
        self._seats = list(seats)
        self._links = list(links)
        self._explain, self._stage, self._up_within_s = explain, stage, up_within_s
        by_seat = {index: link for link in links for index in link.seats}
        self._opened = time.monotonic()
        up_by = self._opened + up_within_s
        self._states = [_State(by_seat.get(index), up_by, {}) for index in range(len(seats))]
        self.lost: dict[int, str] = {}
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._awaited: dict[tuple[int, int], dict[str, Any] | Lost | None] = {}
        self._sent_at: dict[tuple[int, int], float] = {}
        self._last_id = 0
        for index, reason in lost.items():
            self._lose(index, reason)
        atexit.register(self.close)

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The seats. Those of ssh and srun learn their address from their agent."""
        return tuple(self._seats)

    @property
    def up_within_s(self) -> float:
        """How long an agent may take to say its first word."""
        return self._up_within_s

    @property
    def hellos(self) -> tuple[dict[str, Any], ...]:
        """The first message of each agent, empty while it has not come: pid, python, hostname, up_after_s and more."""
        return tuple(state.hello for state in self._states)

    def __enter__(self) -> Switchboard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def one_a_machine(self) -> tuple[int, ...]:
        """A seat of each machine, in order: a living one if there is any."""
        chosen: dict[str, int] = {}
        for index, seat in enumerate(self.seats):
            if chosen.setdefault(seat.machine, index) in self.lost:
                chosen[seat.machine] = index
        return tuple(sorted(chosen.values()))

    def wait_up(self, progress: Progress | None = None) -> None:
        """Wait until every seat has come up or is lost; each has its own time to."""
        shown = time.monotonic()
        while waiting := [index for index in self._silent() if index not in self.lost]:
            left = min(self._states[index].up_by for index in waiting) - time.monotonic()
            self._pump(max(0.0, min(left, _PROGRESS_S)))
            self._lose_the_silent()
            if progress is not None and time.monotonic() - shown >= _PROGRESS_S:
                shown = time.monotonic()
                progress(tuple(self._seats[index].name for index in waiting))

    def _silent(self) -> list[int]:
        return [index for index, state in enumerate(self._states) if state.up_at < 0]

    def ask(
        self, requests: Mapping[int, Mapping[str, Any]], timeout_s: float, progress: Progress | None = None
    ) -> dict[int, dict[str, Any] | Lost]:
        """Send each seat its request and wait for all replies, side by side.

        The time of a seat that has yet to come up counts from then. Replies carry `asked_at` and `answered_at`, epoch
        seconds of this machine. A reply that comes too late is dropped.
        """
        self._last_id += 1
        asked = {index: (index, self._last_id) for index in requests}
        started = time.monotonic()
        for index, key in asked.items():
            self._awaited[key] = Lost(self.lost[index]) if index in self.lost else None
            self._sent_at[key] = time.time()
            self._send(index, {**requests[index], "id": key[1]})
        shown = started
        while open_keys := [key for key in asked.values() if self._awaited[key] is None]:
            left = min(self._deadline(index, started, timeout_s) for index, _ in open_keys) - time.monotonic()
            if left <= 0:
                self._give_up(open_keys, started, timeout_s)
                continue
            self._pump(min(left, _PROGRESS_S))
            if progress is not None and time.monotonic() - shown >= _PROGRESS_S:
                shown = time.monotonic()
                progress(tuple(self._seats[index].name for index, _ in open_keys))
        for key in asked.values():
            self._sent_at.pop(key)
        answers = {index: self._awaited.pop(key) for index, key in asked.items()}
        return {index: answer for index, answer in answers.items() if answer is not None}

    def _deadline(self, index: int, started: float, timeout_s: float) -> float:
        state = self._states[index]
        return max(started, state.up_at) + timeout_s if state.up_at >= 0 else state.up_by

    def _give_up(self, keys: Sequence[tuple[int, int]], started: float, timeout_s: float) -> None:
        now = time.monotonic()
        for key in keys:
            if self._deadline(key[0], started, timeout_s) > now:
                continue
            if self._states[key[0]].up_at < 0:
                self._lose(key[0], self._not_up(key[0]))
            else:
                self._awaited[key] = Lost(f"did not answer within {timeout_s:g} s")

    def _not_up(self, index: int) -> str:
        link, state = self._states[index].link, self._states[index]
        stage = str(state.hello.get("stage", self._stage))
        # What a link to many says is nothing that this seat could be blamed with.
        said = f" (last words: {link.lines[-1]})" if link is not None and link.lines and not link.wraps else ""
        return f"waited {self._up_within_s:g} s for {stage}{said}"

    def post(self, index: int, message: Mapping[str, Any]) -> None:
        """Send a request that wants no reply. To a seat that is lost nothing is sent."""
        self._send(index, message)

    def events(self, timeout_s: float) -> list[tuple[int, dict[str, Any]]]:
        """What agents said unasked since the last call; waits up to `timeout_s` for the first of it.

        A seat that was lost shows up once as `{"event": "lost", "reason": …}`.
        """
        deadline = time.monotonic() + timeout_s
        self._pump(0.0)
        while not self._events:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._pump(left)
            self._lose_the_silent()
        found, self._events = self._events, []
        return found

    def _lose_the_silent(self) -> None:
        """Seats that should have come up by now."""
        for index in self._silent():
            if index not in self.lost and self._states[index].up_by <= time.monotonic():
                self._lose(index, self._not_up(index))

    def _send(self, index: int, message: Mapping[str, Any]) -> None:
        link = self._states[index].link
        if link is not None and index not in self.lost:
            link.send(index, message)

    def _pump(self, timeout_s: float) -> None:
        """Move what can be moved; return when something arrived, or after `timeout_s`."""
        readers = {fd: link for link in self._links for fd in (link.reader, link.complaints) if fd >= 0}
        writers = {link.writer: link for link in self._links if link.has_unsent}
        if not readers and not writers:
            time.sleep(min(timeout_s, 0.01))
            return
        poll = select.poll()
        for fd in {*readers, *writers}:
            poll.register(fd, (select.POLLIN if fd in readers else 0) | (select.POLLOUT if fd in writers else 0))
        for fd, _ in poll.poll(timeout_s * 1000 + 0.5):
            if fd in writers:
                writers[fd].flush()
            if fd in readers:
                self._take(readers[fd], fd)

    def _take(self, link: Link, descriptor: int) -> None:
        if descriptor == link.complaints:
            link.read_complaints()
            return
        for index, message in link.read():
            self._receive(index, message)
        if not link.is_open:
            code, lines = link.how_it_ended()
            for index in link.seats:
                self._lose(index, self._explain(self._seats[index], code, lines))

    def _receive(self, index: int, message: dict[str, Any]) -> None:
        if "re" in message:
            key = (index, message.pop("re"))
            if key in self._awaited and self._awaited[key] is None:
                times = {"asked_at": self._sent_at[key], "answered_at": time.time()}
                self._awaited[key] = Lost(str(message["error"])) if "error" in message else {**message, **times}
        elif message.get("event") == "hello":
            state = self._states[index]
            state.up_at = time.monotonic()
            state.hello = {**message, "up_after_s": state.up_at - self._opened}
            if message.get("address") and not self._seats[index].address:
                self._seats[index] = replace(self._seats[index], address=str(message["address"]))
        elif message.get("event") == "stage":
            self._states[index].hello = message
        elif message.get("event") == "lost":
            self._lose(index, str(message.get("reason", "")))
        else:
            self._events.append((index, message))

    def _lose(self, index: int, reason: str) -> None:
        """A seat is gone for good: whoever waits for it, and whoever listens, is told."""
        if index in self.lost:
            return
        self.lost[index] = reason
        self._events.append((index, {"event": "lost", "reason": reason}))
        for key, answer in self._awaited.items():
            if key[0] == index and answer is None:
                self._awaited[key] = Lost(reason)
        link = self._states[index].link
        if link is not None and link.is_open and all(seat in self.lost for seat in link.seats):
            link.end()

    def close(self) -> None:
        """End all agents, and kill what is left of the processes that led to them."""
        links, self._links = self._links, []
        for link in links:
            for index in link.seats:
                if index not in self.lost:
                    link.send(index, {"do": "quit"})
            link.hang_up()
        with contextlib.suppress(KeyboardInterrupt):
            wait_all(links, _QUIT_S)
        for link in links:
            link.end(signal.SIGTERM)
        with contextlib.suppress(KeyboardInterrupt):
            wait_all(links, _TERMINATE_S)
        for link in links:
            link.close()
        for index in range(len(self._seats)):
            self.lost.setdefault(index, "closed")
        atexit.unregister(self.close)
