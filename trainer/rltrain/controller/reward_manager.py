"""Scores of a batch: rules and functions in child processes, the reward model on the training ranks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rltrain.algos.rewards import overlong_penalty
from rltrain.config.schema import RunConfig
from rltrain.controller.witness import Witness
from rltrain.core.batch import Batch, Sample
from rltrain.core.clock import Clock
from rltrain.core.metrics import Metrics
from rltrain.core.tensors import floats
from rltrain.rewards.combine import combine
from rltrain.rewards.pool import RewardPool, Scoring
from rltrain.rewards.request import RewardRequest, RewardResult
from rltrain.rewards.spec import FAILED

ModelScores = Callable[[Sequence[Sample]], tuple[Sequence[float], int]]
"""Scores of the reward model, one for each sample, and how many conversations were cut to fit."""


class RewardManager:
    """Everything that the config counts as reward."""

    def __init__(self, config: RunConfig, pool: RewardPool, model_scores: ModelScores | None, clock: Clock) -> None:
        self._config = config
        self._pool = pool
        self._model_scores = model_scores
        self._num_truncated = 0
        self._clock = clock
        self.witness: Witness | None = None
        """Is told of what is scored, while a step is kept."""

    def score(self, batch: Batch) -> tuple[Batch, Metrics]:
        """BATCH with `token_level_scores` (all at the last token of each response), and statistics by source.

        Raises:
            UserError: a reward raised, hung or gave no number; the message names the sample.
        """
        with self.scoring(len(batch)) as scoring:
            return scoring.finish(batch)

    @contextmanager
    def scoring(self, count: int) -> Generator[BatchScoring]:
        """In the block, COUNT samples are scored as they are answered; one such block at a time."""
        with self._pool.scoring(count) as scoring:
            yield BatchScoring(self, scoring, self._clock)

    def placed(self, batch: Batch, results: list[RewardResult], retries: int) -> tuple[Batch, Metrics]:
        """BATCH with the scores of RESULTS, after RETRIES of rewards."""
        results = self._with_length(batch, results)
        scores, metrics = combine(results, batch.samples, batch["response_mask"])
        if self._model_scores is not None:
            metrics["reward/model_truncated"] = float(self._num_truncated)
        if retries:
            metrics["reward/retries"] = float(retries)
        if self._config.reward_model.default_score is not None:
            metrics["reward/failed"] = float(sum(FAILED in result.parts for result in results))
        samples = [replace(s, reward_parts=r.parts) for s, r in zip(batch.samples, results, strict=True)]
        return batch.with_fields({"token_level_scores": scores}).with_samples(samples), metrics

    def results(self, samples: Sequence[Sample]) -> list[RewardResult]:
        """The reward of each of SAMPLES by its response text: what validation counts, without length penalties."""
        requests = [request(sample) for sample in samples]
        self.tell(requests)
        return self.with_model(self._pool.score(requests), samples)

    def tell(self, requests: Sequence[RewardRequest]) -> None:
        """Let the witness of the step know what is scored, in the order of the batch."""
        if self.witness is not None:
            self.witness.scored(requests)

    def with_model(self, results: list[RewardResult], samples: Sequence[Sample]) -> list[RewardResult]:
        """RESULTS with what the reward model gives SAMPLES, where there is one."""
        self._num_truncated = 0
        if self._model_scores is None:
            return results
        scores, self._num_truncated = self._model_scores(samples)
        return _added(results, "model", self._config.reward_model.weight, scores)

    def rewards(self, samples: Sequence[Sample]) -> list[float]:
        """The scores of `results`."""
        return [result.score for result in self.results(samples)]

    @property
    def is_rules_alone(self) -> bool:
        """No function of the user's, no model, no term of length: a text is scored again for nothing."""
        model = self._config.reward_model
        others = self._config.custom_reward_function.path or self._model_scores or model.overlong_buffer.enable
        return bool(model.rules) and not others

    def _with_length(self, batch: Batch, results: list[RewardResult]) -> list[RewardResult]:
        buffer = self._config.reward_model.overlong_buffer
        if not buffer.enable:
            return results
        lengths, limit = batch["response_mask"].sum(-1), self._config.data.max_response_length
        penalties = overlong_penalty(lengths, limit, buffer.len, buffer.penalty_factor)
        return _added(results, "overlong", 1.0, floats(penalties))


class BatchScoring:
    """The scores of one batch whose answers come bit by bit."""

    def __init__(self, manager: RewardManager, scoring: Scoring, clock: Clock) -> None:
        self._manager, self._scoring, self._clock = manager, scoring, clock
        self._requests: dict[int, RewardRequest] = {}

    def add(self, samples: Mapping[int, Sample]) -> None:
        """SAMPLES by their places in the batch, with their answers; they are scored while others are generated.

        Raises:
            UserError: nothing scores one of them.
        """
        requests = {row: request(sample) for row, sample in samples.items()}
        self._requests |= requests
        self._scoring.add(requests)

    def finish(self, batch: Batch) -> tuple[Batch, Metrics]:
        """As `RewardManager.score`: what was not added is scored now, and what is not scored is waited for."""
        with self._clock.stage("reward"):
            self.add({row: sample for row, sample in enumerate(batch.samples) if row not in self._requests})
            self._manager.tell([self._requests[row] for row in range(len(batch))])
            results = self._manager.with_model(self._scoring.finish(), batch.samples)
            return self._manager.placed(batch, results, self._scoring.retries)


def _added(results: Sequence[RewardResult], part: str, weight: float, values: Sequence[float]) -> list[RewardResult]:
    return [
        replace(result, score=result.score + weight * value, parts={**result.parts, part: value})
        for result, value in zip(results, values, strict=True)
    ]


def request(sample: Sample) -> RewardRequest:
    """SAMPLE as the reward processes want it."""
    return RewardRequest(
        uid=sample.uid,
        data_source=sample.data_source,
        prompt_text=sample.prompt_text,
        messages=sample.messages,
        solution_str=sample.response_text,
        ground_truth=sample.ground_truth,
        extra_info=dict(sample.extra_info),
        sample=sample.sample,
        place=sample.place,
    )
