"""Requests under way at the engines: each goes to the engine with the least work, and comes out when it finishes."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any

from rltrain.cluster.arrivals import Arrivals
from rltrain.cluster.groups import WorkerGroup
from rltrain.cluster.runtime import Runtime
from rltrain.config.schema import RolloutConfig
from rltrain.controller.dealing import Dealing
from rltrain.core.errors import RunFailure
from rltrain.workers.rollout.protocol import Completion, Request, Sampling

COLLECT_S = 0.25
"""How long an engine generates before it hands over what has finished."""
COLLECTS_AHEAD = 2
"""Calls of `collect` that wait at an engine: with one behind the other it never rests."""
Finished = tuple[int, Completion]
"""A request's number and its answer."""


class Generation:
    """Requests of one run. Engines have weights, and room to generate, whenever something is under way."""

    def __init__(self, runtime: Runtime, workers: WorkerGroup, settings: RolloutConfig) -> None:
        self._workers = workers
        self._dealing = Dealing(range(len(workers.slots)), settings.max_num_seqs)
        limit = "actor_rollout_ref.rollout.generate_timeout_s"
        self._arrivals = Arrivals(runtime, settings.generate_timeout_s, "generating responses", limit)
        self._sampling: dict[int, Sampling] = {}
        self._next = 0

    @property
    def engines(self) -> list[int]:
        """Ranks of those that take part."""
        return self._dealing.engines

    @property
    def troubled(self) -> bool:
        """Something went wrong that `collect` has yet to raise."""
        return self._arrivals.troubled

    @property
    def under_way(self) -> int:
        """Requests that have come in and not out."""
        return len(self._sampling)

    @contextmanager
    def waited_for(self) -> Generator[None]:
        """A block that waits for what it submits; what is under way when an error leaves it is forgotten."""
        with self._arrivals.open():
            try:
                yield
            except BaseException:
                with suppress(RunFailure):
                    self.abort(list(self._sampling))
                self._arrivals.clear()
                raise

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> range:
        """Take REQUESTS in; the numbers under which they come out."""
        numbers = range(self._next, self._next + len(requests))
        self._next = numbers.stop
        self._sampling |= dict.fromkeys(numbers, sampling)
        self._dealing.add(list(zip(numbers, requests, strict=True)), sampling.max_tokens)
        self._hand_out()
        return numbers

    def collect(self, wait_s: float) -> list[Finished]:
        """What has finished, after WAIT_S seconds at most.

        Raises:
            UserError, RunFailure, Interrupted: as of `Arrivals.take`.
        """
        self._keep_busy()
        found = self._finished(self._arrivals.take(wait_s))
        if found:
            self._arrivals.progress(f"{len(found)} responses")
        return found

    def glance(self) -> list[Finished]:
        """What has finished by now. What went wrong, `collect` reports; until then nobody is asked for more."""
        if not self.troubled:
            self._keep_busy()
        return self._finished(self._arrivals.glance())

    def _keep_busy(self) -> None:
        self._hand_out()
        for rank in self._dealing.engines:
            missing = COLLECTS_AHEAD - self._arrivals.pending(rank, "collect")
            for _ in range(missing if self._dealing.in_flight(rank) else 0):
                self._begin("collect", rank, COLLECT_S)

    def _finished(self, arrived: Sequence[tuple[int, str, Any]]) -> list[Finished]:
        found: list[Finished] = []
        for rank, method, answer in arrived:
            if method == "collect":
                found += [(number, one) for number, one in answer if self._dealing.finished(rank, number)]
        for number, _ in found:
            del self._sampling[number]
        return found

    def abort(self, numbers: Collection[int]) -> None:
        """Forget requests; nothing comes of them."""
        for rank, there in self._dealing.drop(numbers).items():
            self._begin("abort", rank, there)
        for number in numbers:
            self._sampling.pop(number, None)

    def lost(self, ranks: Sequence[int]) -> int:
        """Engines RANKS are gone: what they had in flight goes to others, or waits. How many requests."""
        self._arrivals.drop(ranks)
        num_lost = sum(self._dealing.in_flight(rank) for rank in ranks if rank in self._dealing.engines)
        self._dealing.lost(ranks)
        return num_lost

    def back(self, ranks: Collection[int]) -> None:
        """Engines RANKS were started again."""
        self._dealing.back(ranks)

    def _hand_out(self) -> None:
        for rank, numbers in self._dealing.hand_out().items():
            for sampling, some in groupby(numbers, key=self._sampling.__getitem__):
                self._begin("submit", rank, [(number, self._dealing.request(number)) for number in some], sampling)

    def _begin(self, method: str, rank: int, *args: Any) -> None:
        self._arrivals.add(self._workers.begin(method, [args], ranks=[rank]))
