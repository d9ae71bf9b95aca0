"""Metrics of a finished batch: how old the weights were that sampled, and how many answers were cut."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.config.test_resolve import resolved
from trainer.batch import Batch, Sample
from trainer.measure import measure


def batch(versions: list[int], truncated: list[bool]) -> Batch:
    count = len(versions)
    mask, real = torch.ones(count, 2, dtype=torch.bool), torch.ones(count, 5, dtype=torch.bool)
    scores = torch.tensor([[0.0, float(row)] for row in range(count)])
    fields = {
        "input_ids": torch.ones(count, 5, dtype=torch.int64), "responses": torch.ones(count, 2, dtype=torch.int64),
        "attention_mask": real, "response_mask": mask, "token_level_scores": scores, "token_level_rewards": scores,
        "advantages": scores, "returns": scores, "policy_version": torch.tensor(versions),
        "truncated": torch.tensor(truncated),
    }  # fmt: skip
    return Batch.of([Sample("0", row) for row in range(count)], fields)


@pytest.mark.parametrize(
    ("step", "versions", "warmup", "mean", "largest"),
    [
        (1, [0, 0], 0, 0.0, 0.0),
        (5, [4, 4], 0, 0.0, 0.0),
        (5, [4, 2], 0, 1.0, 2.0),
        # The actor has not moved while the critic warms up.
        (3, [0, 0], 4, 0.0, 0.0),
        (7, [0, 6], 4, 3.0, 6.0),
    ],
)
def test_staleness(step: int, versions: list[int], warmup: int, mean: float, largest: float) -> None:
    config = resolved(f"trainer.critic_warmup={warmup}")
    metrics = measure(step, batch(versions, [False, False]), {"timing_s/step": 2.0}, config)
    assert metrics["training/policy_staleness/mean"] == mean
    assert metrics["training/policy_staleness/max"] == largest


def test_an_answer_of_full_length_need_not_be_cut() -> None:
    metrics = measure(1, batch([0, 0, 0, 0], [True, False, False, False]), {"timing_s/step": 2.0}, resolved())
    assert metrics["response/truncated_ratio"] == 0.25
    assert metrics["train/zero_advantage_groups"] == 0.0
    assert metrics["perf/throughput"] == pytest.approx(20 / 2.0)
