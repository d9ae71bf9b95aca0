"""The audit record: facts of each step that no curve shows, so that what went wrong in silence can be found later."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from trainer.batch import Batch, Sample
from trainer.callbacks.base import Callback, RunInfo, StepRecord
from trainer.roles import Actor
from trainer.scoring import Scorer
from trainer.trainers import Trainers


class Audit(Callback):
    """Adds `audit` to each step's record.

    - `response_tokens`, `loss_tokens`: tokens generated, and tokens that the loss counted (per epoch over the batch);
    - `optimizer_steps`: applied so far by the actor;
    - `sampled_tokens_sha256`: of all response tokens in order;
    - `parameter_sha256`: of the actor's shards, by rank;
    - `rescored`: one sample, its reward then and scored again;
    - `recomputed`: first rows of the batch, whose log-probabilities were read again in micro batches of one row.
    """

    def __init__(self, trainers: Trainers, actor: Actor, scorer: Scorer) -> None:
        self._trainers = trainers
        self._actor = actor
        self._scorer = scorer
        self._optimizer_steps = 0.0

    def on_run_start(self, run: RunInfo) -> None:
        """Begin to count."""
        self._optimizer_steps = 0.0

    def on_step_end(self, record: StepRecord) -> None:
        """Add the record."""
        batch = record.batch
        if batch is None:
            return
        self._optimizer_steps += record.metrics.get("actor/optimizer_steps", 0.0)
        row = record.step % len(batch)
        record.audit.update(
            response_tokens=int(batch["response_mask"].sum()),
            loss_tokens=record.metrics.get("actor/loss_tokens"),
            optimizer_steps=int(self._optimizer_steps),
            sampled_tokens_sha256=sampled_tokens_hash(batch),
            parameter_sha256=self._trainers.parameter_hashes(),
            rescored=self._rescored(batch, row),
            recomputed=dict(self._actor.recomputed),
        )

    def _rescored(self, batch: Batch, row: int) -> dict[str, object]:
        sample: Sequence[Sample] = batch.samples[row : row + 1]
        again = self._scorer.rewards(sample)[0]
        return {"uid": sample[0].uid, "sample": sample[0].sample, "reward": _score(batch, row), "again": again}


def _score(batch: Batch, row: int) -> float:
    return float(batch["token_level_scores"][row].sum())


def sampled_tokens_hash(batch: Batch) -> str:
    """SHA-256 over the response tokens of all rows, in order, without padding."""
    tokens = batch["responses"][batch["response_mask"]].to(torch.int64).contiguous()
    return hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
