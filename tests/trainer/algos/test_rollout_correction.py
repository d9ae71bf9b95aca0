"""Truncated importance sampling between engine and actor."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from rltrain.algos.rollout_correction import rollout_is_weights
from rltrain.config.schema import RolloutCorrectionConfig
from tests.trainer.algos import reference
from tests.trainer.algos.ragged import mask_of, normal, seeds

Level = Literal["token", "sequence"]


def config(
    level: Level | None = "token", normalize: bool = False, threshold: float | str = 2.0
) -> RolloutCorrectionConfig:
    return RolloutCorrectionConfig(
        rollout_is=level, rollout_is_threshold=threshold, rollout_is_batch_normalize=normalize
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("normalize", [False, True])
@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_as_in_the_paper(level: Level, normalize: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    actor, rollout, mask = normal(rng, 5, 4), normal(rng, 5, 4), mask_of(rng, 5, 4)
    weights, metrics = rollout_is_weights(actor, rollout, mask, config(level, normalize))
    assert weights is not None
    expected, of_rows = np.zeros((5, 4)), []
    for row in range(5):
        places = reference.tokens(mask.numpy(), row)
        ratios = [math.exp(float(actor[row, t] - rollout[row, t])) for t in places]
        for t, ratio in zip(places, ratios, strict=True):
            expected[row, t] = min(2.0, ratio if level == "token" else math.prod(ratios))
        if places:
            of_rows.append(expected[row, places[0]])
    mean = np.mean(of_rows if level == "sequence" else expected[mask.numpy()])
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(expected[mask.numpy()].mean())
    np.testing.assert_allclose(weights.numpy(), expected / mean if normalize else expected, rtol=1e-9)
    assert float(weights.max()) <= 2.0 / (mean if normalize else 1.0) + 1e-12
    assert metrics.get("rollout_corr/rollout_is_batch_norm_factor", mean) == pytest.approx(mean)


@pytest.mark.parametrize("level", ["token", "sequence"])
@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_weights_outside_of_two_bounds_are_0(level: Level, seed: int) -> None:
    rng = np.random.default_rng(seed)
    actor, rollout, mask = normal(rng, 5, 4), normal(rng, 5, 4), mask_of(rng, 5, 4)
    weights, metrics = rollout_is_weights(actor, rollout, mask, config(level, True, "0.5_2.0"))
    assert weights is not None
    expected, of_rows, outside = np.zeros((5, 4)), list[float](), list[bool]()
    for row in range(5):
        places = reference.tokens(mask.numpy(), row)
        ratios = [math.exp(float(actor[row, t] - rollout[row, t])) for t in places]
        for t, ratio in zip(places, ratios, strict=True):
            ratio = ratio if level == "token" else math.prod(ratios)
            outside.append(not 0.5 <= ratio <= 2.0)
            expected[row, t] = 0 if outside[-1] else ratio
        if places:
            of_rows.append(expected[row, places[0]])
    mean = np.mean(of_rows if level == "sequence" else expected[mask.numpy()]) or 1.0
    np.testing.assert_allclose(weights.numpy(), expected / mean, rtol=1e-9)
    assert metrics["rollout_corr/rollout_is_oob_ratio"] == pytest.approx(np.mean(outside))


def test_metrics_by_hand() -> None:
    # ratios actor / rollout: 4, 1/4 | 1 | (empty)
    rollout = torch.tensor([[0.2, 0.8], [0.5, 0.1], [0.3, 0.3]], dtype=torch.float64).log()
    actor = torch.tensor([[0.8, 0.2], [0.5, 0.9], [0.9, 0.9]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    _, metrics = rollout_is_weights(actor, rollout, mask, config())
    ours = {name.removeprefix("rollout_corr/"): value for name, value in metrics.items()}
    weights = np.array([2, 0.25, 1])
    assert ours["rollout_is_mean"] == pytest.approx(weights.mean())
    assert ours["rollout_is_std"] == pytest.approx(weights.std())
    assert (ours["rollout_is_max"], ours["rollout_is_min"]) == (2, pytest.approx(0.25))
    assert ours["rollout_is_eff_sample_size"] == pytest.approx(weights.mean() ** 2 / (weights**2).mean())
    assert ours["rollout_is_ratio_fraction_high"] == ours["rollout_is_ratio_fraction_low"] == pytest.approx(1 / 3)
    assert (ours["rollout_is_seq_mean"], ours["rollout_is_seq_max_deviation"]) == pytest.approx((1.0625, 0.125))
    assert (ours["rollout_is_seq_fraction_high"], ours["rollout_is_seq_fraction_low"]) == (0.5, 0)
    assert ours["kl"] == pytest.approx(0, abs=1e-12)
    assert ours["k3_kl"] == pytest.approx((4 + 0.25 - 2) / 3)
    assert ours["chi2_token"] == pytest.approx((16 + 1 / 16 + 1) / 3 - 1)
    assert ours["chi2_seq"] == pytest.approx(0, abs=1e-12)
    assert ours["training_ppl"] == ours["rollout_ppl"] == pytest.approx((1 / 0.4 + 2) / 2)
    assert ours["ppl_ratio"] == pytest.approx(1)


def test_direction_of_the_gap() -> None:
    rollout = torch.full((2, 3), 0.5, dtype=torch.float64).log()
    actor = torch.full((2, 3), 0.4, dtype=torch.float64).log()
    metrics = rollout_is_weights(actor, rollout, torch.ones(2, 3, dtype=torch.bool), config("sequence"))[1]
    gap = math.log(0.5 / 0.4)
    for name in ("kl", "log_ppl_diff", "log_ppl_abs_diff", "log_ppl_diff_max", "log_ppl_diff_min"):
        assert metrics[f"rollout_corr/{name}"] == pytest.approx(gap)
    assert metrics["rollout_corr/ppl_ratio"] == pytest.approx(1.25)
    assert metrics["rollout_corr/training_log_ppl"] - metrics["rollout_corr/rollout_log_ppl"] == pytest.approx(gap)
    assert metrics["rollout_corr/chi2_seq"] == pytest.approx(0.8**6 - 1)
    assert metrics["rollout_corr/rollout_is_min"] == pytest.approx(0.8**3)
    assert metrics["rollout_corr/rollout_is_ratio_fraction_low"] == 0  # 0.8^3 > 1 / 2


def test_sequence_extremes_are_those_before_truncation() -> None:
    actor, rollout = torch.zeros(2, 2, dtype=torch.float64), torch.tensor([[-1.0, -1], [0, 0]], dtype=torch.float64)
    _, metrics = rollout_is_weights(actor, rollout, torch.ones(2, 2, dtype=torch.bool), config("sequence"))
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(math.exp(2))
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == 0.5
    assert metrics["rollout_corr/rollout_is_seq_max"] == 2


def test_off_and_empty() -> None:
    cells, mask = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    weights, metrics = rollout_is_weights(cells, cells, ~mask, config(None))
    assert weights is None
    assert metrics["rollout_corr/kl"] == 0
    weights, metrics = rollout_is_weights(cells, cells, mask, config("sequence", normalize=True))
    assert weights is not None
    assert not weights.any()
    assert metrics == {"rollout_corr/rollout_is_batch_norm_factor": 1.0}


def test_absurd_gaps_stay_finite() -> None:
    mask = torch.ones(1, 2, dtype=torch.bool)
    for gap in (-1e4, 1e4):
        weights, metrics = rollout_is_weights(torch.zeros(1, 2), torch.full((1, 2), gap), mask, config("sequence"))
        assert weights is not None
        assert bool(weights.isfinite().all())
        assert all(math.isfinite(value) for name, value in metrics.items() if "ppl" not in name)
