"""What asynchrony would give: engines and ranks played through on a clock of their own. Pure: no torch, no Ray.

An engine has places; a pass gives each answer in them a token and takes the longer, the more of them are in use. Ranks
take a time for each token. Which groups make a step is decided by the loop's own `Window`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import gcd
from random import Random

from rltrain.controller.window import Window
from rltrain.records.speeds import Speeds

_STEPS = 16
_MOST_ANSWERS = 512
"""Of a step; of a larger one a part is played, on as small a part of each engine and rank."""
_FEWEST = 8
"""Groups, and places of an engine, in that part."""
_SOON = 1e-9


@dataclass(frozen=True)
class Shape:
    """Who works, and on what."""

    ranks: int
    engines: int
    places: int
    """Answers that an engine writes at a time (`max_num_seqs`)."""
    groups: int
    """Prompts a step (`data.train_batch_size`)."""
    n: int
    """Answers to each."""


@dataclass(frozen=True)
class Forecast:
    """Means over the steps after the first ones."""

    step_s: float
    tokens_per_s: float
    """Prompts and answers that were learnt from."""
    training_idle: float
    """Share of the time in which ranks wait for answers."""
    rollout_idle: float
    """Share of the time in which engines have nothing to answer."""


def forecast(speeds: Speeds, shape: Shape, bound: int) -> Forecast:
    """Play steps of SHAPE with `algorithm.max_staleness` BOUND; the answers are the same for each BOUND.

    0: both sides take turns. 1: the next step's answers are written while ranks learn. More: groups are learnt from as
    they finish, and weights interrupt the engines, which read again what they have.
    """
    whole, shape = shape, _fewer(shape)
    parts = max(min(shape.groups * shape.n // _MOST_ANSWERS, min(shape.groups, shape.places) // _FEWEST), 1)
    play = _Play(speeds.part(parts), replace(shape, groups=shape.groups // parts, places=shape.places // parts))
    play.steps(bound, skipped := bound + 2)
    begun = play.now, play.learnt, play.waited_s, play.rested_s
    play.steps(bound, _STEPS, done=skipped)
    seconds, learnt, waited_s, rested_s = (
        after - before
        for after, before in zip((play.now, play.learnt, play.waited_s, play.rested_s), begun, strict=True)
    )
    return Forecast(
        seconds / _STEPS, learnt * parts * whole.ranks / shape.ranks / seconds, waited_s / seconds, rested_s / seconds
    )


def _fewer(shape: Shape) -> Shape:
    """The same for fewer of each: of 8 engines one, with an eighth of ranks and prompts, if that is enough."""
    common, answers = gcd(shape.ranks, shape.engines, shape.groups), shape.groups * shape.n
    by = max(
        each for each in range(1, common + 1) if common % each == 0 and (each == 1 or answers // each >= _MOST_ANSWERS)
    )
    return replace(shape, ranks=shape.ranks // by, engines=shape.engines // by, groups=shape.groups // by)


class _Play:
    def __init__(self, speeds: Speeds, shape: Shape) -> None:
        self._speeds, self._shape = speeds, shape
        pass_s = cache(speeds.pass_s)
        self._engines = [_Engine(speeds, pass_s) for _ in range(shape.engines)]
        self._queue: deque[tuple[int, int]] = deque()
        """Answers that no engine has yet: their group and length."""
        self._random = Random(0)
        self._lengths: dict[int, list[int]] = {}
        self._left: dict[int, int] = {}
        """Unfinished answers of each group."""
        self._whole = 0
        """Groups without any that no step has learnt from."""
        self._window = Window(shape.groups, 0)
        self.now = self.learnt = self.waited_s = self.rested_s = 0.0

    def steps(self, bound: int, count: int, done: int = 0) -> None:
        """Take COUNT steps after DONE."""
        if not done:
            self._window = Window(self._shape.groups, bound)
        for version in range(done, done + count):
            if bound == 1:  # the answers of this step, then weights, then those of the next one
                if not version:
                    self._ask(version)
                while self._is_busy:
                    self._wait()
                self._take_weights()
                picks = self._picks(version)
                self._ask(version + 1)
            else:
                self._take_weights()
                while self._window.room(version) >= self._shape.groups:
                    self._ask(version)
                while len(picks := self._picks(version)) < self._shape.groups:
                    self._wait()
            self._whole -= len(picks)
            self._learn(picks)

    def _picks(self, version: int) -> list[int]:
        """The groups of the step; none before there are enough."""
        return [] if self._whole < self._shape.groups else list(self._window.picks(version))

    def _ask(self, version: int) -> None:
        for number in range(first := self._window.admitted, first + self._shape.groups):
            self._window.admit(number, version)
            lengths = [self._speeds.draw(self._random) for _ in range(self._shape.n)]
            self._lengths[number], self._left[number] = lengths, self._shape.n
            self._queue += [(number, length) for length in lengths]

    def _take_weights(self) -> None:
        self.now += self._speeds.sync_s
        if not self._is_busy:
            self.rested_s += self._speeds.sync_s
        for engine in self._engines:
            engine.read_again()

    def _learn(self, picks: Sequence[int]) -> None:
        tokens = sum(sum(self._lengths.pop(one)) for one in picks) + len(picks) * self._shape.n * self._speeds.prompt
        self.learnt += tokens
        end = self.now + self._speeds.train_s * tokens / self._shape.ranks
        while (left := end - self.now) > _SOON:
            if not self._is_busy:
                self.rested_s += left
                self.now = end
            else:
                self._advance(left)
        self.now = end

    def _wait(self) -> None:
        self.waited_s += self._advance(None)

    @property
    def _is_busy(self) -> bool:
        return bool(self._queue) or any(engine.running for engine in self._engines)

    def _advance(self, most_s: float | None) -> float:
        """Go on to the next end of an answer, or for MOST_S; returns the seconds."""
        while self._queue and (engine := min(self._engines, key=lambda one: one.running)).running < self._shape.places:
            engine.take(*self._queue.popleft())
        seconds = min(engine.next_s() for engine in self._engines)
        seconds = seconds if most_s is None else min(seconds, most_s)
        for engine in self._engines:
            for number in engine.run(seconds):
                self._left[number] -= 1
                if not self._left[number]:
                    self._window.finish(number)
                    self._whole += 1
        self.now += seconds
        return seconds


class _Engine:
    """One engine; its time is counted in passes, each a token for every answer in it."""

    def __init__(self, speeds: Speeds, pass_s: Callable[[int], float]) -> None:
        self._speeds, self._pass_s = speeds, pass_s
        self._passes = self._reading_s = self._begun = 0.0
        self._ends: list[tuple[float, float, int]] = []
        """The pass at which an answer ends, that at which it began, and its group."""

    @property
    def running(self) -> int:
        return len(self._ends)

    def take(self, number: int, length: int) -> None:
        heapq.heappush(self._ends, (self._passes + length, self._passes, number))
        self._begun += self._passes
        self._reading_s += self._speeds.prompt * self._speeds.prefill_s

    def read_again(self) -> None:
        """New weights: what there is of each answer is computed again."""
        tokens = self.running * (self._passes + self._speeds.prompt) - self._begun
        self._reading_s += tokens * self._speeds.prefill_s if self.running else 0.0

    def next_s(self) -> float:
        """Seconds until the next answer ends."""
        if not self._ends:
            return float("inf")
        return self._reading_s + (self._ends[0][0] - self._passes) * self._pass_s(self.running)

    def run(self, seconds: float) -> list[int]:
        """Work for SECONDS, at most until an answer ends; the groups of those that end."""
        if not self._ends:
            return []
        read = min(seconds, self._reading_s)
        self._reading_s -= read
        self._passes += (seconds - read) / self._pass_s(self.running)
        ended: list[int] = []
        while self._ends and self._ends[0][0] <= self._passes + 1e-6:
            _, begun, number = heapq.heappop(self._ends)
            self._begun -= begun
            ended.append(number)
        return ended
