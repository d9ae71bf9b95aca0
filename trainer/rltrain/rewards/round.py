"""One batch on its way through a pool: lists go to idle children, results come back, failures are tried again.

Requests may come in while others are scored already: answers are scored as they are generated.
"""

from __future__ import annotations

import bisect
import math
import selectors
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rltrain.core.errors import UserError
from rltrain.rewards.process import Child
from rltrain.rewards.request import Failure, RewardRequest, RewardResult
from rltrain.rewards.spec import FAILED, ScorerSpec

POLL_S = 0.05
"""How often hung and dead children are looked for."""
LISTS_PER_PROCESS = 4
"""Into how many lists per process a batch is cut: more even the load, fewer cost less."""


class Round:
    """Scores requests with CHILDREN, which must be idle.

    RENEW gives a child in place of one that hangs or is dead; ON_POLL is told again and again how many are done.
    """

    def __init__(
        self,
        spec: ScorerSpec,
        children: Sequence[Child],
        renew: Callable[[Child], Child],
        on_poll: Callable[[int], None],
    ) -> None:
        self._spec = spec
        self._num_lists = LISTS_PER_PROCESS * len(children)
        self._requests: dict[int, RewardRequest] = {}
        self._renew = renew
        self._on_poll = on_poll
        self._waiting: list[list[int]] = []
        """Lists of samples, in order of their first."""
        self._idle = list(children)
        self.busy: dict[Child, list[int]] = {}
        """Children at work, and the samples of their list."""
        self.broken: list[Child] = []
        """Children that hang or are dead, and were not renewed."""
        self._results: dict[int, RewardResult] = {}
        self._failures: dict[int, str] = {}
        self._tries: Counter[int] = Counter()
        self.defaults: dict[int, str] = {}
        """Samples that were given `reward_model.default_score`, and why."""
        self._selector = selectors.DefaultSelector()

    @property
    def retries(self) -> int:
        """Calls that were made again, all samples together."""
        return sum(min(tries, self._spec.max_retries) for tries in self._tries.values())

    def add(self, requests: Mapping[int, RewardRequest]) -> None:
        """Score REQUESTS, too: by their places in the batch, in any order."""
        numbers = sorted(requests)
        size = max(math.ceil(len(numbers) / self._num_lists), 1)
        self._requests |= requests
        for at in range(0, len(numbers), size):
            bisect.insort(self._waiting, numbers[at : at + size])

    def turn(self, wait_s: float) -> bool:
        """Give lists to idle children, and take what came within WAIT_S seconds; whether something is under way."""
        for child in self._hand_out():
            self._selector.register(child, selectors.EVENT_READ)
        wanted = self._wanted()
        if not wanted:
            return False
        self._on_poll(len(self._results))
        ready = {key.fileobj for key, _ in self._selector.select(wait_s)}
        for child in wanted:
            if child in ready or child.ended() is not None:
                self._collect(child)
            else:
                self._check_time(child)
            if child not in self.busy:
                self._selector.unregister(child)
        while self.broken and self._is_left():
            self._idle.append(self._renew(self.broken.pop()))
        return True

    def run(self) -> list[RewardResult]:
        """All results in order.

        Raises:
            UserError: the first sample, in order, that has none.
        """
        while self.turn(POLL_S):
            pass
        if self._failures:
            raise UserError(self._failures[min(self._failures)])
        return [self._results[index] for index in sorted(self._requests)]

    def close(self) -> None:
        """Wait for nothing any more."""
        self._selector.close()

    def _last(self) -> int:
        """Samples from here on matter no longer: one before them has failed for good."""
        return min(self._failures, default=sys.maxsize)

    def _is_left(self) -> bool:
        return bool(self._waiting) and self._waiting[0][0] < self._last()

    def _hand_out(self) -> list[Child]:
        """Give lists to idle children, in order; after a failure those alone that come before it."""
        started: list[Child] = []
        while self._is_left() and self._idle:
            child, samples = self._idle.pop(), self._waiting.pop(0)
            self.busy[child] = samples
            started.append(child)
            child.send([self._requests[index] for index in samples], self._spec.timeout_s)
        return started

    def _wanted(self) -> list[Child]:
        """Children to wait for: after a failure those that may know of an earlier one."""
        last = sys.maxsize if self._is_left() else self._last()
        return [child for child, samples in self.busy.items() if samples[0] < last]

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
        samples = self.busy.pop(child)
        self._idle.append(child)
        for done, (index, result) in enumerate(zip(samples, reply[0], strict=False)):
            if isinstance(result, Failure):
                self._failed(index, f"{result.words}; {self._requests[index].words()}", samples[done + 1 :])
            else:
                self._results[index] = result

    def _check_time(self, child: Child) -> None:
        child.working_on(len(self._spec.part_names))
        if time.monotonic() - child.since > self._spec.timeout_s:
            self._break(child, f"took longer than reward_model.timeout_s = {self._spec.timeout_s:g} s")

    def _break(self, child: Child, words: str) -> None:
        at, part = child.working_on(len(self._spec.part_names))
        samples = self.busy.pop(child)
        self.broken.append(child)
        index = samples[at]
        words = f"reward {self._spec.part_names[part]} {words}; {self._requests[index].words()}"
        self._failed(index, words, samples[at + 1 :])
        if at and index not in self._failures:  # scored, and lost with the child
            bisect.insort(self._waiting, samples[:at])

    def _failed(self, index: int, words: str, behind: list[int]) -> None:
        """Sample INDEX gave no reward: try it again, with those BEHIND it in its list, or settle for less."""
        self._tries[index] += 1
        again = [index]
        if self._tries[index] > self._spec.max_retries:
            again = []
            if self._spec.default_score is None:
                self._failures[index] = words
            else:
                self.defaults[index] = words
                self._results[index] = RewardResult(self._spec.default_score, {FAILED: 1.0}, 0.0)
        if again or behind:
            bisect.insort(self._waiting, [*again, *behind])
