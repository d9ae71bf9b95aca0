"""The numbers of a gap, and where it is."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch

from rltrain.algos.metrics import rollout_diff_metrics
from rltrain.algos.off_policy import off_policy_metrics
from rltrain.measure.drift import bins
from rltrain.measure.drift.gaps import finite, gap

ROLLOUT = torch.tensor([-0.1, -1.0, -2.0, -4.0, -0.5])
TRAIN = torch.tensor([-0.2, -0.9, -2.5, -4.0, -0.4])


def test_the_numbers_are_those_of_a_run() -> None:
    """Each has the value that rltrain would write for the same tokens, under verl's definitions."""
    mask = torch.ones(1, 5, dtype=torch.bool)
    run = rollout_diff_metrics(TRAIN[None], ROLLOUT[None], mask) | off_policy_metrics(TRAIN[None], ROLLOUT[None], mask)
    found = gap(TRAIN, ROLLOUT)
    for name, metric in {
        "probs_diff_mean": "training/rollout_probs_diff_mean",
        "probs_diff_max": "training/rollout_probs_diff_max",
        "probs_diff_std": "training/rollout_probs_diff_std",
        "log_probs_diff_mean": "training/rollout_log_probs_diff_mean",
        "kl": "rollout_corr/kl",
        "k3_kl": "rollout_corr/k3_kl",
        "corr": "training/rollout_actor_probs_pearson_corr",
        "log_corr": "training/rollout_log_probs_corr",
        "slope": "training/rollout_log_probs_slope",
    }.items():
        assert getattr(found, name) == pytest.approx(run[metric], abs=1e-12), name
    rho = (TRAIN - ROLLOUT).double().exp()
    assert found.is_mean == pytest.approx(float(rho.mean()))
    assert found.ess == pytest.approx(float(rho.sum() ** 2 / (5 * (rho**2).sum())))
    assert found.log_probs_diff_max == pytest.approx(0.5)
    assert found.share_above == pytest.approx(4 / 5)


def test_equal_readings_have_no_gap() -> None:
    found = gap(ROLLOUT, ROLLOUT)
    assert (found.probs_diff_max, found.kl, found.is_std, found.ess) == (0.0, 0.0, 0.0, 1.0)
    assert found.slope == pytest.approx(1.0)


def test_what_is_not_defined_is_none() -> None:
    found = gap(torch.tensor([-1.0]), torch.tensor([-1.0]))
    assert (found.corr, found.slope, found.probs_diff_std) == (None, None, 0.0)


def test_far_apart_stays_a_number() -> None:
    found = gap(torch.tensor([-1.0, 0.0]), torch.tensor([-1.0, -800.0]))
    assert all(math.isfinite(value) for value in msgspec.structs.astuple(found) if value is not None)


def test_finite() -> None:
    left, right = torch.tensor([0.0, -torch.inf, 1.0]), torch.tensor([0.0, 0.0, torch.nan])
    assert finite(left, right).tolist() == [True, False, False]


def test_bins_hold_every_token_once() -> None:
    position = torch.tensor([0, 1, 2, 3, 4])
    found = bins.binned(position, bins.doubling(4), TRAIN, ROLLOUT)
    assert [(one.low, one.high, one.num_tokens) for one in found] == [
        (0.0, 1.0, 1), (1.0, 2.0, 1), (2.0, 4.0, 2), (4.0, 8.0, 1),
    ]  # fmt: skip
    assert found[2].log_probs_diff_mean == pytest.approx(0.25)


def test_histogram_counts_what_is_zero_and_what_is_huge() -> None:
    train, rollout = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -1.005, -900.0])
    found = bins.histogram(train, rollout)
    assert [(one.low, one.num_tokens) for one in found] == [(0.0, 1), (0.001, 1), (1.0, 1)]


def test_points_are_few_and_in_pairs() -> None:
    rollout = -torch.arange(5000).float()
    found = bins.points(rollout - 1, rollout)
    assert len(found) == 1667
    assert found[1] == (-3.0, -4.0)
