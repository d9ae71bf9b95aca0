"""The groups of answers between their prompt and the step that learns from them, while engines and ranks both work.

The controller is one thread. Whenever it waits for ranks or rewards it looks after the engines (`Waits.meanwhile`), so
that they do not rest.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rltrain.cluster.runtime import Runtime
from rltrain.config.schema import RunConfig
from rltrain.controller import saved_groups
from rltrain.controller.engine_group import POLL_S, EngineGroup
from rltrain.controller.generation import Finished
from rltrain.controller.occupancy import Occupancy
from rltrain.controller.reward_manager import BatchScoring, RewardManager
from rltrain.controller.rollout import Asked, Rollout, train_sampling
from rltrain.controller.step_metrics import updates_between
from rltrain.controller.window import Window
from rltrain.core.batch import Batch, Sample
from rltrain.core.clock import Clock
from rltrain.core.metrics import Metrics
from rltrain.data.loader import to_prompt_batch
from rltrain.data.schema import Row
from rltrain.workers.rollout.protocol import Completion, Request


@dataclass
class Group:
    """One prompt, and its answers so far."""

    samples: Sequence[Sample]
    requests: Sequence[Request]
    log_probs: Sequence[bool]
    """Whether training is to see the engine's log-probabilities, by sample."""
    found: dict[int, Completion] = field(default_factory=dict[int, Completion])
    texts: dict[int, str] = field(default_factory=dict[int, str])

    @property
    def is_whole(self) -> bool:
        """All answers are there."""
        return len(self.found) == len(self.requests)

    def answered(self) -> list[Sample]:
        """The samples with their texts."""
        return [replace(sample, response_text=self.texts[row]) for row, sample in enumerate(self.samples)]


class Buffer:
    """Groups that were asked for and are not learnt from yet.

    Args:
        config: resolved.
        rollout: brings weights into the engines.
        engines: of the run.
        reward_manager: scores what is finished.
        runtime: of the run.
        clock: where stages are timed.
        step: the last one that is finished.
        first: the batch of rows that is drawn first: an earlier one than the next step's, if groups of it wait.
        total_steps: of the run.
    """

    def __init__(
        self,
        config: RunConfig,
        rollout: Rollout,
        engines: EngineGroup,
        reward_manager: RewardManager,
        runtime: Runtime,
        clock: Clock,
        step: int,
        first: int,
        total_steps: int,
    ) -> None:
        self._config, self._rollout, self._engines, self._clock = config, rollout, engines, clock
        self._reward_manager, self._waits = reward_manager, runtime.waits
        self._per_step, self._bound = config.data.train_batch_size, config.algorithm.max_staleness
        self._step, self._total_steps = step, total_steps
        self._window = Window(self._per_step, self._bound, step, (first - 1) * self._per_step)
        self._groups: dict[int, Group] = {}
        self._asked: dict[int, tuple[int, int]] = {}
        """Group and sample of each request under way."""
        self._saved = saved_groups.NOTHING
        self._occupancy = Occupancy()

    def steps(self) -> range:
        """Those to come."""
        return range(self._step + 1, self._total_steps + 1)

    @contextmanager
    def generating(self) -> Generator[None]:
        """In the block, engines are looked after while the controller waits for others."""
        before, self._waits.meanwhile = self._waits.meanwhile, self._glance
        try:
            yield
        finally:
            self._waits.meanwhile = before

    def admit(self, step: int, coming: Iterator[tuple[int, list[Row]]]) -> None:
        """Bring the newest weights into the engines, and ask for as many groups of COMING as STEP lets in.

        Raises:
            RunFailure: an engine failed, or did not take them in time.
            Interrupted: a signal came.
        """
        with self._rollout.phase():
            while self._window.room(step - 1) >= self._per_step and (new := next(coming, None)) is not None:
                self._ask(step - 1, *new)
        self._occupancy.engines(bool(self._asked))

    def take(self, step: int) -> tuple[Batch, Metrics]:
        """The scored groups that STEP learns from; waits for those that are due, scores while others are written.

        Raises:
            RunFailure: an engine failed, or did not answer in time.
            UserError: a reward cannot be used.
            Interrupted: a signal came.
        """
        self._waits.check()
        self._forget_learnt(step)
        n = self._config.actor_rollout_ref.rollout.n
        with self._reward_manager.scoring(self._per_step * n) as scoring:
            picks = self._wait(step, scoring)
            batch, metrics = scoring.finish(self._batch(picks))
        answers = [answer for number in picks for answer in self._groups[number].found.values()]
        self._refuse_stale(step, answers)
        metrics |= self._occupancy.taken() | self._measure(step, answers)
        return batch, metrics

    def first_batch(self, step: int) -> int:
        """The batch of rows from which a run that goes on after STEP draws."""
        left = self._window.outstanding(step)
        return min(left, default=self._window.admitted) // self._per_step + 1

    def save(self, directory: Path, step: int) -> None:
        """Write what is outstanding after STEP into DIRECTORY: finished answers, and which groups there are."""
        left = self._window.outstanding(step)
        answers = {
            (number, row): (group.requests[row], answer)
            for number in left
            for group in [self._groups[number]]
            for row, answer in group.found.items()
        }
        saved_groups.save(directory, step, saved_groups.Saved(self._bound, self._window.admitted, left), answers)

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote, if it did; answers that are not there are asked for again, by the weights of then.

        Raises:
            UserError: it cannot be read, or the bound was larger.
        """
        self._saved = saved_groups.load(directory, self._bound)

    def _ask(self, version: int, batch: int, rows: list[Row]) -> None:
        """Ask for the answers to ROWS; of those from before a restart, for what is missing."""
        n, prompts = self._config.actor_rollout_ref.rollout.n, to_prompt_batch(rows).samples
        samples = [replace(prompt, sample=row) for prompt in prompts for row in range(n)]
        asked = self._rollout.ask(samples, train_sampling(self._config), batch)
        wanted: list[tuple[int, int]] = []
        for place in range(len(prompts)):
            number, rows_of = (batch - 1) * self._per_step + place, range(place * n, place * n + n)
            if number < self._saved.admitted and number not in self._saved.groups:
                self._window.pass_over(number)  # it was learnt from
                continue
            group = Group(
                samples[rows_of.start : rows_of.stop],
                asked.requests[rows_of.start : rows_of.stop],
                [row in asked.log_probs for row in rows_of],
            )
            self._groups[number] = group
            self._window.admit(number, self._saved.groups.get(number, version))
            self._take([((number, row), answer) for row, answer in self._saved.answers(number, group.requests).items()])
            wanted += [(number, row) for row in range(n) if row not in group.found]
        numbers = self._engines.submit([self._groups[one].requests[row] for one, row in wanted], asked.sampling)
        self._asked |= dict(zip(numbers, wanted, strict=True))

    def _wait(self, step: int, scoring: BatchScoring) -> Sequence[int]:
        """The groups of STEP, once they are finished; they are scored as they become known."""
        n, scored = self._config.actor_rollout_ref.rollout.n, 0

        def known() -> Sequence[int]:
            nonlocal scored
            picks = list(self._window.picks(step - 1))
            for place in range(scored, len(picks)):
                scoring.add(dict(enumerate(self._groups[picks[place]].answered(), place * n)))
            scored = len(picks)
            return picks

        if len(picks := known()) == self._per_step:
            return picks
        with self._clock.stage("gen"), self._occupancy.waiting(), self._engines.waited_for():
            while len(picks := known()) < self._per_step:
                self._take(self._finished(self._engines.collect(POLL_S)))
        return picks

    def _glance(self) -> None:
        if self._asked:
            self._take(self._finished(self._engines.glance()))

    def _finished(self, finished: Sequence[Finished]) -> list[tuple[tuple[int, int], Completion]]:
        return [(self._asked.pop(number), answer) for number, answer in finished]

    def _take(self, finished: Sequence[tuple[tuple[int, int], Completion]]) -> None:
        texts = self._rollout.texts([(place, answer) for place, (_, answer) in enumerate(finished)])
        for place, ((number, row), answer) in enumerate(finished):
            group = self._groups[number]
            group.found[row], group.texts[row] = answer, texts[place]
            if group.is_whole:
                self._window.finish(number)
        self._occupancy.engines(bool(self._asked))

    def _forget_learnt(self, step: int) -> None:
        left = self._window.outstanding(step - 1)
        self._groups = {number: group for number, group in self._groups.items() if number in left}

    def _batch(self, picks: Sequence[int]) -> Batch:
        groups = [self._groups[number] for number in picks]
        flat = [(group, row) for group in groups for row in range(len(group.requests))]
        asked = Asked(
            [group.samples[row] for group, row in flat],
            [group.requests[row] for group, row in flat],
            train_sampling(self._config),
            frozenset(place for place, (group, row) in enumerate(flat) if group.log_probs[row]),
        )
        texts = {place: group.texts[row] for place, (group, row) in enumerate(flat)}
        return self._rollout.batch(asked, [group.found[row] for group, row in flat], texts)

    def _refuse_stale(self, step: int, answers: Sequence[Completion]) -> None:
        """A mistake of ours, which no run may train over."""
        oldest = min(version for answer in answers for _, version in answer.versions)
        if (behind := updates_between(oldest, step, self._config)) > self._bound:
            raise RuntimeError(
                f"step {step}: an answer is {behind} versions behind, algorithm.max_staleness={self._bound}"
            )

    def _measure(self, step: int, answers: Sequence[Completion]) -> Metrics:
        finished, unfinished = self._window.unpicked
        tokens = [0] * (self._bound + 1)
        for answer in answers:
            ends = [*(first for first, _ in answer.versions[1:]), len(answer.token_ids)]
            for (first, version), end in zip(answer.versions, ends, strict=True):
                tokens[updates_between(version, step, self._config)] += end - first
        return {
            "rollout/buffer_finished": float(finished),
            "rollout/buffer_unfinished": float(unfinished),
            "rollout/interrupted_answers": sum(len(answer.versions) > 1 for answer in answers) / len(answers),
            **{
                f"training/policy_staleness/tokens@{behind}": count / sum(tokens) for behind, count in enumerate(tokens)
            },
        }
