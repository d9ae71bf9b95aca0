"""Calls that are answered in any order: each answer is taken as it comes, and new calls join meanwhile."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from rltrain.cluster.calls import SETTLE_S, WORDS_EVERY_S, Call, Trouble, late, names_of, result_of
from rltrain.cluster.ray_api import ray
from rltrain.cluster.runtime import Runtime
from rltrain.cluster.waits import Waiting
from rltrain.core.errors import RunFailure


class Arrivals:
    """Calls under way. Their answers are no sign of progress by themselves: a poll is answered by an engine that hangs.

    Args:
        runtime: where they run.
        deadline_s: seconds without a sign of progress (`progress`, or a worker's own) after which the wait is given up.
        doing: what the calls do, for messages: "generating responses".
        limit: the config key that sets DEADLINE_S.
    """

    def __init__(self, runtime: Runtime, deadline_s: float, doing: str, limit: str) -> None:
        self._runtime, self._deadline_s, self._doing, self._limit = runtime, deadline_s, doing, limit
        self._owners: dict[Any, tuple[Call, int]] = {}
        self._arrived: list[tuple[int, str, Any]] = []
        self._troubles: list[tuple[int, Trouble]] = []
        """Each with its rank."""
        self._begun = self._said = time.monotonic()
        self._waiting: Waiting | None = None

    @contextmanager
    def open(self) -> Generator[None]:
        """Show the wait to the watchdog for the time of the block; the time that runs begins with it."""
        self._begun = self._said = time.monotonic()
        with self._runtime.waits.waiting(self._doing, names_of(self._owners)) as self._waiting:
            try:
                yield
            finally:
                self._waiting = None

    def add(self, call: Call) -> None:
        """Wait for CALL, too."""
        self._owners |= {ref: (call, rank) for ref, rank in call.refs.items()}
        self._name_who_is_left()

    def drop(self, ranks: Sequence[int]) -> None:
        """Wait no more for calls of RANKS: their processes are gone."""
        self._owners = {ref: owner for ref, owner in self._owners.items() if owner[1] not in ranks}
        self._troubles = [one for one in self._troubles if one[0] not in ranks]
        self._name_who_is_left()

    def clear(self) -> None:
        """Wait for nothing any more."""
        self._owners, self._arrived, self._troubles = {}, [], []
        self._name_who_is_left()

    def pending(self, rank: int, method: str) -> int:
        """How many calls of METHOD on RANK are not answered."""
        return sum(call.method == method and one == rank for call, one in self._owners.values())

    @property
    def troubled(self) -> bool:
        """Something went wrong that `take` has yet to raise."""
        return bool(self._troubles)

    def progress(self, what: str) -> None:
        """Something was done: the time that may pass without begins again."""
        self._runtime.waits.beat(what)

    def glance(self) -> list[tuple[int, str, Any]]:
        """As `take`, of what is there; waits for nothing, and leaves errors to `take`."""
        self._look(0)
        arrived, self._arrived = self._arrived, []
        return arrived

    def take(self, wait_s: float) -> list[tuple[int, str, Any]]:
        """Rank, method and answer of what has arrived, after WAIT_S seconds at most.

        Raises:
            UserError, RunFailure, Interrupted: as of `calls.gather`, once all that had arrived was given.
        """
        self._look(0 if self._troubles else wait_s)
        if self._troubles and not self._arrived:
            time.sleep(SETTLE_S)
            self._look(0)
            troubles, self._troubles = self._troubles, []
            raise min((trouble for _, trouble in troubles), key=lambda trouble: trouble.weight).error from None
        waits = self._runtime.waits
        waits.check()
        waits.look()
        now = time.monotonic()
        if now - max(self._begun, waits.last_beat.at) > self._deadline_s:
            waiting = self._waiting or Waiting(self._doing, names_of(self._owners))
            raise RunFailure(f"{late(waiting, self._owners.values(), self._deadline_s)}; the limit is {self._limit}")
        if now - self._said > WORDS_EVERY_S:
            self._said = now
            self._runtime.still(f"{self._doing} ({now - self._begun:.0f} s)")
        arrived, self._arrived = self._arrived, []
        return arrived

    def _look(self, wait_s: float) -> None:
        refs = list(self._owners)
        ready: list[Any] = ray.wait(refs, num_returns=1, timeout=wait_s)[0] if refs else []
        if ready:
            ready = ray.wait(refs, num_returns=len(refs), timeout=0)[0]
        for ref in ready:
            call, rank = self._owners.pop(ref)
            troubles: list[Trouble] = []
            value = result_of(call, rank, ref, self._doing, troubles)
            self._troubles += [(rank, trouble) for trouble in troubles]
            if not troubles:
                self._arrived.append((rank, call.method, value))
        self._name_who_is_left()

    def _name_who_is_left(self) -> None:
        if self._waiting is not None:
            self._waiting.left[:] = names_of(self._owners)
