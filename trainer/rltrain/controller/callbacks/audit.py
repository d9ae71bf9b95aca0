"""The audit record: facts of each step that no curve shows, so that what went wrong in silence can be found later."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import torch

from rltrain.config.schema import RunConfig
from rltrain.controller.callbacks.base import Callback, StepRecord
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.roles import Actor, learnt_from
from rltrain.controller.train_group import TrainGroup
from rltrain.core.batch import Batch
from rltrain.core.clock import Clock

MOST_SHARE = 0.01
"""Of the time, for what is not done in each step."""
MOST_TRUTHS = 8
"""Ground truths that are scored as answers, in the first step."""


class Audit(Callback):
    """Adds `audit` to each step's record.

    - `response_tokens`, `loss_tokens`: tokens generated, less those of answers that `mask_truncated_completions` leaves
      out, and tokens that the loss counted (per epoch over the batch);
    - `optimizer_steps`: taken by the actor since the run began, before a resume too;
    - `adam_steps`: the same by the count in the optimizer's own state, which its moments were made of;
    - `sampled_tokens_sha256`: of all response tokens in order;
    - `parameter_sha256`: of the actor's shards, by rank; not in each step (`trainer.audit_freq`);
    - `shard_sha256`: of the tokens that the actor learnt from, by rank;
    - `rescored`: one sample, its reward then and scored again (`reward_model.rescore`);
    - `recomputed`: a row for each rank that had followed others in its micro batch, its log-probabilities read again
      alone; `rows` says where it had been;
    - `truth_scored`: in the first step of a run whose rewards are rules alone, what ground truths earn as answers.
    """

    def __init__(
        self, train_group: TrainGroup, actor: Actor, reward_manager: RewardManager, clock: Clock, config: RunConfig
    ) -> None:
        self._train_group, self._actor, self._reward_manager = train_group, actor, reward_manager
        self._config, self._clock, self._rescores = config, clock, bool(config.reward_model.rescore)
        self._hashes = Seldom(config.trainer.audit_freq)

    def on_step_end(self, record: StepRecord) -> None:
        """Add the record."""
        batch = record.batch
        if batch is None:
            return
        with self._clock.apart("audit"):
            counted, remembered = self._train_group.optimizer_steps()
            record.audit.update(
                response_tokens=int(learnt_from(batch, self._config)["response_mask"].sum()),
                loss_tokens=record.metrics.get("actor/loss_tokens"),
                optimizer_steps=counted,
                adam_steps=remembered,
                sampled_tokens_sha256=sampled_tokens_hash(batch),
                shard_sha256=self._train_group.shard_hashes(),
                recomputed=dict(self._actor.recomputed),
            )
            if self._hashes.is_due(record.step):
                with self._hashes.measured():
                    record.audit["parameter_sha256"] = self._train_group.parameter_hashes()
            if self._rescores:
                record.audit["rescored"] = self._rescored(batch, record.step % len(batch))
            if record.step == 1:
                record.audit.update(self._truths(batch))
        record.metrics.update(self._clock.taken())

    def _truths(self, batch: Batch) -> dict[str, object]:
        """`truth_scored`, or nothing where a function of the user's or a model would have to be asked."""
        if not self._reward_manager.is_rules_alone:
            return {}
        scored: list[dict[str, object]] = []
        first = {str(sample.ground_truth): row for row, sample in reversed(list(enumerate(batch.samples)))}
        for row in sorted(first.values())[:MOST_TRUTHS]:
            sample = batch.samples[row]
            if isinstance(sample.ground_truth, str | int | float):
                answer = batch.select([row]).with_samples([replace(sample, response_text=str(sample.ground_truth))])
                again, _ = self._reward_manager.score(answer)
                scored.append({"ground_truth": sample.ground_truth, "reward": _sum(again)})
        return {"truth_scored": scored} if scored else {}

    def _rescored(self, batch: Batch, row: int) -> dict[str, object]:
        one = batch.select([row])
        again, _ = self._reward_manager.score(one)
        return {"uid": one.samples[0].uid, "sample": one.samples[0].sample, "reward": _sum(one), "again": _sum(again)}


class Seldom:
    """Something dear: every EVERY-th step, or, where that is None, so often that it takes MOST_SHARE of the time."""

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._earliest = 0.0

    def is_due(self, step: int) -> bool:
        """Whether it is the turn of STEP, which counts from 1."""
        if self._every is not None:
            return (step - 1) % self._every == 0
        return time.perf_counter() >= self._earliest

    @contextmanager
    def measured(self) -> Generator[None]:
        """The block is what is dear."""
        begin = time.perf_counter()
        yield
        end = time.perf_counter()
        self._earliest = begin + (end - begin) / MOST_SHARE


def _sum(one: Batch) -> float:
    return float(one["token_level_scores"].sum())


def sampled_tokens_hash(batch: Batch) -> str:
    """SHA-256 over the response tokens of all rows, in order, without padding."""
    tokens = batch["responses"][batch["response_mask"]].to(torch.int64).contiguous()
    return hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
