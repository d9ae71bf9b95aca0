"""Experience for one step: generate, score, and where DAPO asks for it, generate again until enough groups differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from rltrain.algos.filter_groups import filter_groups
from rltrain.config.estimators import has_need
from rltrain.config.schema import RunConfig
from rltrain.controller.algorithm import group_ids
from rltrain.controller.filter_metric import filter_metric
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.rollout import Rollout, greedy_sampling, train_sampling
from rltrain.core.batch import Batch, concatenate
from rltrain.core.errors import RunFailure
from rltrain.core.metrics import Metrics
from rltrain.core.tensors import floats
from rltrain.data.loader import to_prompt_batch
from rltrain.data.schema import Row
from rltrain.rewards.combine import statistics


class Collector:
    """Turns prompts into scored samples under the current policy: answers are scored while others are generated."""

    def __init__(
        self, config: RunConfig, rollout: Rollout, reward_manager: RewardManager, more_prompts: Callable[[], list[Row]]
    ) -> None:
        self._config = config
        self._rollout = rollout
        self._reward_manager = reward_manager
        self._more_prompts = more_prompts

    def collect(self, step: int, rows: list[Row]) -> tuple[Batch, Metrics]:
        """`data.train_batch_size` prompts times `rollout.n` samples, generated and scored.

        Raises:
            RunFailure: dynamic sampling found too few groups whose metric differs.
        """
        batch, metrics = self._generate_and_score(step, rows)
        if not self._config.algorithm.filter_groups.enable:
            return batch, metrics
        return self._until_full(step, batch, metrics)

    def _generate_and_score(self, step: int, rows: list[Row]) -> tuple[Batch, Metrics]:
        n = self._config.actor_rollout_ref.rollout.n
        prompts = to_prompt_batch(rows).samples
        samples = [replace(prompt, sample=number) for prompt in prompts for number in range(n)]
        baselines = None
        with self._reward_manager.scoring(len(samples)) as scoring:
            with self._rollout.phase() as rollout:
                batch = rollout.generate(samples, train_sampling(self._config), step, scoring.add)
                if has_need(self._config.algorithm.adv_estimator, "greedy"):
                    baselines = rollout.generate(
                        prompts, greedy_sampling(self._config), step, lambda _: scoring.add({}), learnt=False
                    )
            batch, metrics = scoring.finish(batch)
        if baselines is not None:
            greedy, _ = self._reward_manager.score(baselines)
            scores = greedy["token_level_scores"].sum(-1)
            batch = batch.with_fields({"reward_baselines": scores.repeat_interleave(n)})
        return batch, metrics

    def _until_full(self, step: int, batch: Batch, metrics: Metrics) -> tuple[Batch, Metrics]:
        wanted = self._config.data.train_batch_size * self._config.actor_rollout_ref.rollout.n
        settings = self._config.algorithm.filter_groups
        limit = settings.max_num_gen_batches
        kept, seen = self._varied(batch), [batch]
        while len(kept) < wanted:
            if limit and len(seen) >= limit:
                raise RunFailure(
                    f"step {step}: after {len(seen)} rounds of generation only {len(kept)} of {wanted} samples lie in "
                    f"groups whose '{settings.metric}' differs; raise algorithm.filter_groups.max_num_gen_batches, or "
                    "take easier or harder data"
                )
            more, found = self._generate_and_score(step, self._more_prompts())
            # Means by source are taken again over all rounds; what else there is are counts.
            metrics = {**metrics, **{name: metrics.get(name, 0.0) + value for name, value in found.items()}}
            kept = concatenate([kept, self._varied(more)])
            seen.append(more)
        metrics |= _statistics(seen) | {"train/num_gen_batches": float(len(seen))}
        return kept.select(range(wanted)), metrics

    def _varied(self, batch: Batch) -> Batch:
        metric = torch.tensor(filter_metric(batch.samples, self._config), dtype=torch.float64)
        return batch.select(filter_groups(metric, group_ids(batch)))


def _statistics(rounds: Sequence[Batch]) -> Metrics:
    """Rewards by source of all that was generated, whether it is learnt from or not."""
    samples = [sample for batch in rounds for sample in batch.samples]
    scores = [score for batch in rounds for score in floats(batch["token_level_scores"].sum(-1))]
    return statistics([s.data_source for s in samples], scores, [s.reward_parts for s in samples])
