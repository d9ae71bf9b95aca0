"""Validation: greedy (or sampled) answers to held-out prompts, and what a policy blind to its prompt would score."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from rltrain.cluster.teardown import Interrupted
from rltrain.cluster.waits import Waits
from rltrain.config.schema import RunConfig
from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.rollout import Rollout, val_sampling
from rltrain.core.batch import Batch, Sample
from rltrain.core.clock import Clock
from rltrain.core.metrics import Metrics
from rltrain.data.baselines import best_constant_answer, shuffled_pairing
from rltrain.data.dataset import Dataset
from rltrain.data.loader import to_prompt_batch
from rltrain.data.schema import Row

VALIDATION_STEP = -1
"""Stands for the step in request seeds: validation draws the same numbers at any step."""


class Evaluator:
    """Scores the current policy on the validation set."""

    def __init__(
        self, config: RunConfig, rollout: Rollout, reward_manager: RewardManager, dataset: Dataset, clock: Clock
    ) -> None:
        self._config, self._rollout, self._reward_manager, self._clock = config, rollout, reward_manager, clock
        self._rows = list(dataset)
        self._n = config.actor_rollout_ref.rollout.val_kwargs.n
        self._constant: float | None = None

    def evaluate(self) -> Metrics:
        """`val/reward/*` over all prompts, and verl's `val-core/SOURCE/reward/mean@N`, `best@N` by source."""
        with self._clock.apart("testing"):
            answered = self.answer()
            rewards = self._reward_manager.rewards(answered)
            metrics = {"val/reward/mean": _mean(rewards), "val/reward/std": _std(rewards)}
            metrics |= self._by_source(answered, rewards)
            if len(self._rows) > 1 and self._config.reward_model.rescore:
                metrics["val/reward/shuffled"] = self._shuffled(answered)
                metrics["val/reward/best_constant"] = self._best_constant()
            return metrics

    def answer(self) -> list[Sample]:
        """The validation prompts with the policy's answers, `val_kwargs.n` for each."""
        prompts = to_prompt_batch(self._rows).repeat(self._n).samples
        size = (self._config.data.val_batch_size or len(self._rows)) * self._n
        answered: list[Sample] = []
        with self._rollout.phase() as rollout:
            for start in range(0, len(prompts), size):
                part = prompts[start : start + size]
                batch: Batch = rollout.generate(part, val_sampling(self._config), VALIDATION_STEP, learnt=False)
                answered.extend(batch.samples)
        return answered

    def _shuffled(self, answered: Sequence[Sample]) -> float:
        first = answered[:: self._n]
        pairing = shuffled_pairing(len(first), self._config.trainer.seed)
        strangers = [
            replace(first[other], response_text=sample.response_text)
            for sample, other in zip(first, pairing, strict=True)
        ]
        return _mean(self._reward_manager.rewards(strangers))

    def _best_constant(self) -> float:
        if self._constant is None:
            self._constant = best_constant_answer(self._rows, self._score_answers)[1]
        return self._constant

    def _score_answers(self, answers: Sequence[str], rows: Sequence[Row]) -> list[float]:
        samples = to_prompt_batch(rows).samples
        answered = [replace(sample, response_text=text) for sample, text in zip(samples, answers, strict=True)]
        return self._reward_manager.rewards(answered)

    def _by_source(self, answered: Sequence[Sample], rewards: Sequence[float]) -> Metrics:
        sources: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for sample, reward in zip(answered, rewards, strict=True):
            sources[sample.data_source][sample.index].append(reward)
        metrics: Metrics = {}
        for source, groups in sources.items():
            name = f"val-core/{source or 'unknown'}/reward"
            metrics[f"{name}/mean@{self._n}"] = _mean([_mean(group) for group in groups.values()])
            if self._n > 1:
                metrics[f"{name}/best@{self._n}"] = _mean([max(group) for group in groups.values()])
        return metrics


class Validation(Callback):
    """Evaluates before training, and every `trainer.test_freq` steps and after the last one.

    A signal drops the validation: it may take longer than there is left, and the step is to be saved.
    """

    def __init__(self, evaluator: Evaluator, clock: Clock, waits: Waits) -> None:
        self._evaluator, self._clock, self._waits = evaluator, clock, waits
        self._frequency = -1
        self._before = True
        self._last_step = 0

    def on_run_start(self, run: RunInfo) -> None:
        """Note how often."""
        trainer = run.config.trainer
        self._frequency, self._before, self._last_step = trainer.test_freq, trainer.val_before_train, run.total_steps

    def on_step_end(self, record: StepRecord) -> None:
        """Add validation metrics, if it is the step's turn."""
        due = self._frequency > 0 and (record.step % self._frequency == 0 or record.step == self._last_step)
        if not (self._before if record.before_training else due):
            return
        try:
            with self._waits.unshielded():
                self._waits.check()
                record.metrics.update(self._evaluator.evaluate() | self._clock.taken())
        except Interrupted as stop:
            if record.before_training:
                raise
            record.stopped = True
            self._waits.interrupt(stop)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(_mean([(value - mean) ** 2 for value in values]))
