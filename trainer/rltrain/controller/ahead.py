"""Answers that are made while other things happen: asked for now, taken a step later, and saved in between.

The controller is one thread. Whenever it waits for ranks or rewards it looks after the engines (`Waits.meanwhile`), so
that they do not rest. What engines make depends on the requests and their weights alone, not on when they are looked
at.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from rltrain.cluster.runtime import Runtime
from rltrain.config.schema import RunConfig
from rltrain.controller import saved_answers
from rltrain.controller.engine_group import POLL_S, EngineGroup
from rltrain.controller.generation import Finished
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.rollout import Asked, Rollout, train_sampling
from rltrain.core.batch import Batch
from rltrain.core.clock import Clock
from rltrain.core.metrics import Metrics
from rltrain.data.loader import to_prompt_batch
from rltrain.data.schema import Row
from rltrain.workers.rollout.protocol import Completion


@dataclass
class Round:
    """The answers to the prompts of one step."""

    asked: Asked
    first: int = 0
    """Number of its first request."""
    found: dict[int, Completion] = field(default_factory=dict[int, Completion])
    texts: dict[int, str] = field(default_factory=dict[int, str])
    begun: float = field(default_factory=time.monotonic)
    ended: float | None = None
    """When the last answer was there."""
    waited_s: float = 0.0
    """While nothing else was done."""

    @property
    def is_whole(self) -> bool:
        """All answers are there."""
        return len(self.found) == len(self.asked.requests)


class Ahead:
    """The rounds of the step in hand and of the next. One at most is under way.

    Args:
        config: resolved.
        rollout: brings weights into the engines; waits here (`land`) before it does.
        engines: of the run.
        reward_manager: scores what is finished.
        runtime: of the run.
        clock: where stages are timed.
    """

    def __init__(
        self,
        config: RunConfig,
        rollout: Rollout,
        engines: EngineGroup,
        reward_manager: RewardManager,
        runtime: Runtime,
        clock: Clock,
    ) -> None:
        self._config, self._rollout, self._engines, self._clock = config, rollout, engines, clock
        self._reward_manager, self._waits = reward_manager, runtime.waits
        self._rounds: dict[int, Round] = {}
        self._saved: saved_answers.Saved | None = None
        self._nothing = runtime.waits.meanwhile
        rollout.land = self.land

    def begin(self, step: int, rows: list[Row]) -> None:
        """Ask for the answers of STEP, by the actor's weights as they are now; nothing is under way."""
        n, prompts = self._config.actor_rollout_ref.rollout.n, to_prompt_batch(rows).samples
        samples = [replace(prompt, sample=number) for prompt in prompts for number in range(n)]
        now = Round(self._rollout.ask(samples, train_sampling(self._config), step))
        saved, self._saved = self._saved, None
        if saved is not None and saved.fits(step, now.asked.requests):
            self._rounds[step] = now
            self._take(now, list(enumerate(saved.completions)))
            return
        with self._rollout.phase():
            now.begun = time.monotonic()
            now.first = self._engines.submit(now.asked.requests, now.asked.sampling).start
            self._rounds[step] = now
            self._waits.meanwhile = self._glance

    def finish(self, step: int, rows: list[Row]) -> Batch:
        """The answers of STEP, not scored yet: waits for those that are not there, asks if nobody has asked before.

        Raises:
            RunFailure: an engine failed, or did not answer in time.
        """
        self._rounds = {number: one for number, one in self._rounds.items() if number >= step}
        is_ahead = step in self._rounds
        if not is_ahead:
            self.begin(step, rows)
        # A signal waits for what was asked ahead: the checkpoint that it leads to holds those answers.
        self._wait(self._waits.shielded() if is_ahead else nullcontext())
        now = self._rounds[step]
        with self._clock.stage("gen"):
            return self._rollout.batch(now.asked, [now.found[row] for row in range(len(now.found))], now.texts)

    def score(self, batch: Batch) -> tuple[Batch, Metrics]:
        """BATCH with its scores, while others are generated."""
        return self._reward_manager.score(batch)

    def land(self) -> None:
        """Wait until nothing is under way; done with those that are there before anybody else uses the engines."""
        self._wait(self._waits.shielded())

    def measure(self, step: int) -> Metrics:
        """How the two sides overlapped since the answers of STEP were asked for; called when the next ones are."""
        now, end = self._rounds[step], time.monotonic()
        busy = (now.ended or end) - now.begun
        whole = max((self._rounds[step + 1].begun if step + 1 in self._rounds else end) - now.begun, busy, 1e-9)
        return {
            "perf/generation_overlap": 1 - now.waited_s / busy if busy else 0.0,
            "perf/rollout_idle": 1 - busy / whole,
            "perf/training_idle": now.waited_s / whole,
        }

    def save(self, directory: Path, step: int) -> None:
        """Write the answers that the step after STEP learns from into DIRECTORY: their weights will be gone."""
        now = self._rounds.get(step + 1)
        if now is None:
            return
        if not now.is_whole:
            self.land()
        saved_answers.save(directory, step + 1, now.asked.requests, [now.found[row] for row in range(len(now.found))])

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote, if it did; the next round takes it, if it asks for the same."""
        self._saved = saved_answers.load(directory)

    def _wait(self, around: AbstractContextManager[None]) -> None:
        under_way = [one for one in self._rounds.values() if not one.is_whole]
        if not under_way:
            return
        [now], began = under_way, time.monotonic()
        self._waits.meanwhile = self._nothing
        with self._clock.stage("gen"), around, self._engines.waited_for():
            while not now.is_whole:
                self._take(now, self._numbered(now, self._engines.collect(POLL_S)))
        now.waited_s += time.monotonic() - began

    def _glance(self) -> None:
        for now in self._rounds.values():
            if not now.is_whole:
                self._take(now, self._numbered(now, self._engines.glance()))
        if all(one.is_whole for one in self._rounds.values()):
            self._waits.meanwhile = self._nothing

    def _numbered(self, now: Round, finished: Sequence[Finished]) -> list[Finished]:
        return [(number - now.first, answer) for number, answer in finished]

    def _take(self, now: Round, finished: Sequence[Finished]) -> None:
        now.found |= dict(finished)
        now.texts |= self._rollout.texts(finished)
        if now.is_whole:
            now.ended = now.ended or time.monotonic()
