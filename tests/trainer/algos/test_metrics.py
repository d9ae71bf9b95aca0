"""Metrics of a batch, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rltrain.algos.metrics import data_metrics, explained_variance, rollout_diff_metrics

MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])


def cells(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def fields() -> dict[str, torch.Tensor]:
    return {
        "response_mask": MASK,
        "attention_mask": torch.cat([torch.tensor([[True, True], [False, True], [False, True]]), MASK], dim=1),
        "token_level_scores": cells([0, 0, 1], [-1, 0, 0], [9, 9, 9]),
        "token_level_rewards": cells([0.5, 0, 1], [-1, 0, 0], [9, 9, 9]),
        "advantages": cells([1, 2, 3], [-2, 9, 9], [9, 9, 9]),
        "returns": cells([1, 1, 1], [-1, 9, 9], [9, 9, 9]),
        "values": cells([1, 1, 0], [-1, 9, 9], [9, 9, 9]),
    }


def test_data_metrics() -> None:
    metrics = data_metrics(fields(), max_prompt_length=2, max_response_length=3)
    expected = {
        "critic/score": (0, 1, -1), "critic/rewards": (0.25, 1.5, -1), "critic/advantages": (1, 3, -2),
        "critic/returns": (0.5, 1, -1), "critic/values": (0.25, 1, -1), "response_length": (4 / 3, 3, 0),
        "response_length_non_aborted": (2, 3, 1), "prompt_length": (4 / 3, 2, 1),
    }  # fmt: skip
    for name, numbers in expected.items():
        ours = tuple(metrics[f"{name}/{kind}"] for kind in ("mean", "max", "min"))
        assert ours == pytest.approx(numbers), name
    assert metrics["response_length/clip_ratio"] == metrics["prompt_length/clip_ratio"] == pytest.approx(1 / 3)
    assert metrics["response_length_non_aborted/clip_ratio"] == 0.5
    assert metrics["response/aborted_ratio"] == pytest.approx(1 / 3)
    assert metrics["critic/score/std"] == 1  # 1 and -1
    assert metrics["critic/advantages/std"] == pytest.approx(np.std([1, 2, 3, -2]))
    # returns 1 1 1 -1: variance 1; errors 0 0 1 0: variance 1/4
    assert metrics["critic/vf_explained_var"] == pytest.approx(0.75, abs=1e-4)
    assert all(isinstance(value, float) for value in metrics.values())


def test_without_a_critic() -> None:
    without = {name: value for name, value in fields().items() if name != "values"}
    assert not [name for name in data_metrics(without, 2, 3) if "value" in name or "vf_" in name]


def test_explained_variance_of_a_perfect_and_a_constant_critic() -> None:
    returns, mask = cells([1, 2, 3, 5]), torch.ones(1, 4, dtype=torch.bool)
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(torch.full_like(returns, 7), returns, mask) == pytest.approx(0, abs=1e-4)
    assert explained_variance(-returns, returns, mask) < -1


def test_rollout_diff_metrics() -> None:
    actor, rollout = cells([0.5, 0.4, 0.9], [0.1, 0, 0], [0, 0, 0]), cells([0.5, 0.3, 0.8], [0.2, 0, 0], [0, 0, 0])
    metrics = rollout_diff_metrics(actor.log(), rollout.log(), MASK)
    differences = np.array([0, 0.1, 0.1, 0.1])
    assert metrics["training/rollout_probs_diff_valid"] == 1
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(differences.mean())
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(0.1)
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(differences.std(ddof=1))
    assert metrics["training/rollout_log_probs_diff_mean"] == pytest.approx(
        (math.log(4 / 3) + math.log(9 / 8) + math.log(2)) / 4
    )
    correlation = np.corrcoef([0.5, 0.4, 0.9, 0.1], [0.5, 0.3, 0.8, 0.2])[0, 1]
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(correlation)
    actors, engines = np.log([0.5, 0.4, 0.9, 0.1]), np.log([0.5, 0.3, 0.8, 0.2])
    assert metrics["training/rollout_log_probs_corr"] == pytest.approx(np.corrcoef(actors, engines)[0, 1])
    assert metrics["training/rollout_log_probs_slope"] == pytest.approx(np.polyfit(engines, actors, 1)[0])
    assert metrics["training/rollout_log_probs_diff_first"] == pytest.approx(math.log(2) / 2)
    assert metrics["training/rollout_log_probs_diff_last"] == pytest.approx((math.log(9 / 8) + math.log(2)) / 2)


def test_log_probs_of_another_temperature_have_a_slope() -> None:
    engine = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) - 3
    mask = torch.ones(8, 5, dtype=torch.bool)
    metrics = rollout_diff_metrics(engine * 0.5 - 1, engine, mask)
    assert metrics["training/rollout_log_probs_slope"] == pytest.approx(0.5)
    assert metrics["training/rollout_log_probs_corr"] == pytest.approx(1)


def test_nothing_to_measure_is_not_a_number() -> None:
    nowhere = torch.zeros_like(MASK)
    metrics = rollout_diff_metrics(MASK.double(), MASK.double(), nowhere)
    assert metrics.pop("training/rollout_probs_diff_valid") == 0
    assert all(math.isnan(value) for value in metrics.values())
    empty = data_metrics({**fields(), "response_mask": nowhere}, 2, 3)
    assert math.isnan(empty["critic/score/mean"])
    assert math.isnan(empty["critic/vf_explained_var"])
    assert math.isnan(empty["response_length_non_aborted/clip_ratio"])
    assert empty["response/aborted_ratio"] == 1


@pytest.mark.filterwarnings("error")
def test_one_token_has_no_spread() -> None:
    one = MASK & (torch.arange(9).view(3, 3) == 0)
    metrics = rollout_diff_metrics(-MASK.double(), -MASK.double(), one)
    assert metrics["training/rollout_probs_diff_mean"] == 0
    assert math.isnan(metrics["training/rollout_probs_diff_std"])
    assert math.isnan(explained_variance(MASK.double(), MASK.double(), one))
