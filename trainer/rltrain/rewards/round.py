"""One batch on its way through a pool: lists go to idle children, results come back, failures get a sample."""

from __future__ import annotations

import math
import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence

from rltrain.core.errors import UserError
from rltrain.rewards.process import Child
from rltrain.rewards.request import Failure, RewardRequest, RewardResult
from rltrain.rewards.spec import ScorerSpec

POLL_S = 0.05
"""How often hung and dead children are looked for."""
LISTS_PER_PROCESS = 4
"""Into how many lists per process a batch is cut: more even the load, fewer cost less."""


class Round:
    """Scores REQUESTS with CHILDREN, which must be idle; ON_POLL is told again and again how many are done."""

    def __init__(
        self,
        spec: ScorerSpec,
        children: Sequence[Child],
        requests: Sequence[RewardRequest],
        on_poll: Callable[[int], None],
    ) -> None:
        self._spec = spec
        self._requests = requests
        self._on_poll = on_poll
        self._size = math.ceil(len(requests) / (LISTS_PER_PROCESS * len(children)))
        self._waiting = deque(range(0, len(requests), self._size))
        self._idle = list(children)
        self.busy: dict[Child, int] = {}
        """Children at work, and the number of the first sample of their list."""
        self.broken: list[Child] = []
        """Children that hang or are dead."""
        self._results: dict[int, RewardResult] = {}
        self._failures: dict[int, str] = {}

    def run(self) -> list[RewardResult]:
        """All results in order.

        Raises:
            UserError: the first sample, in order, that has none.
        """
        with selectors.DefaultSelector() as selector:
            while True:
                for child in self._hand_out():
                    selector.register(child, selectors.EVENT_READ)
                wanted = self._wanted()
                if not wanted:
                    break
                self._on_poll(len(self._results))
                ready = {key.fileobj for key, _ in selector.select(POLL_S)}
                for child in wanted:
                    if child in ready or child.ended() is not None:
                        self._collect(child)
                    else:
                        self._check_time(child)
                    if child not in self.busy:
                        selector.unregister(child)
        if self._failures:
            raise UserError(self._failures[min(self._failures)])
        return [self._results[index] for index in range(len(self._requests))]

    def _hand_out(self) -> list[Child]:
        """Give lists to idle children, in order; after a failure no more."""
        started: list[Child] = []
        while self._waiting and self._idle and not self._failures:
            child, first = self._idle.pop(), self._waiting.popleft()
            self.busy[child] = first
            started.append(child)
            child.send(self._requests[first : first + self._size], self._spec.timeout_s)
        return started

    def _wanted(self) -> list[Child]:
        """Children to wait for: after a failure those that may know of an earlier one."""
        last = min(self._failures, default=len(self._requests))
        return [child for child, first in self.busy.items() if first < last]

    def _collect(self, child: Child) -> None:
        try:
            reply = child.receive()
        except EOFError:
            self._break(child, child.how_it_ended())
            return
        if reply is None:  # a part of it, or no more to come although a process that it left holds the channel
            words = child.ended()
            if words is not None:
                self._break(child, words)
            return
        first = self.busy.pop(child)
        self._idle.append(child)
        for index, result in enumerate(reply[0], first):
            if isinstance(result, Failure):
                self._failures[index] = f"{result.words}; {self._requests[index].words()}"
            else:
                self._results[index] = result

    def _check_time(self, child: Child) -> None:
        child.working_on(len(self._spec.part_names))
        if time.monotonic() - child.since > self._spec.timeout_s:
            self._break(child, f"took longer than reward_model.timeout_s = {self._spec.timeout_s:g} s")

    def _break(self, child: Child, words: str) -> None:
        sample, part = child.working_on(len(self._spec.part_names))
        index = self.busy.pop(child) + sample
        self.broken.append(child)
        self._failures[index] = f"reward {self._spec.part_names[part]} {words}; {self._requests[index].words()}"
