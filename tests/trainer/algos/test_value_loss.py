"""The critic's clipped loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from rltrain.algos.value_loss import value_loss_terms
from tests.trainer.algos.ragged import gradient, mask_of, normal, seeds


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope", "clipped"),
    [
        (1.2, 3.0, 0.5 * 1.8**2, -1.8, 0),  # within ± 0.5 of the old value 1
        (2.0, 3.0, 0.5 * 1.5**2, 0.0, 1),  # gone too far towards the target: held at 1.5
        (2.0, 1.0, 0.5, 1.0, 0),  # gone away from the target: not held
        (0.0, -1.0, 0.5 * 1.5**2, 0.0, 1),  # too far down: held at 0.5
    ],
)
def test_by_hand(value: float, target: float, loss: float, slope: float, clipped: int) -> None:
    cell = torch.ones(1, 1, dtype=torch.float64)
    mask = cell > 0
    terms, sums = value_loss_terms(cell * value, cell, cell * target, mask, 0.5)
    assert float(terms) == pytest.approx(loss)
    assert (float(sums["vf_clipfrac"]), float(sums["vpred_mean"])) == (clipped, value)
    assert float(
        gradient(lambda v: value_loss_terms(v, cell, cell * target, mask, 0.5)[0], cell * value)
    ) == pytest.approx(slope)


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_as_written(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, old, returns, mask = normal(rng, 4, 5), normal(rng, 4, 5), normal(rng, 4, 5), mask_of(rng, 4, 5)
    terms, sums = value_loss_terms(values, old, returns, mask, 0.4)
    clipped, total = 0, 0.0
    for row in range(4):
        for t in range(5):
            v, o, g = (float(each[row, t]) for each in (values, old, returns))
            near = min(max(v, o - 0.4), o + 0.4)
            expected = 0.5 * max((v - g) ** 2, (near - g) ** 2) if mask[row, t] else 0.0
            assert float(terms[row, t]) == pytest.approx(expected, abs=1e-12)
            clipped += bool(mask[row, t]) and (near - g) ** 2 > (v - g) ** 2
            total += v if mask[row, t] else 0.0
    assert float(sums["vf_clipfrac"]) == clipped
    assert float(sums["vpred_mean"]) == pytest.approx(total)
