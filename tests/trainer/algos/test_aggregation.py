"""The loss of a mini batch is the sum of its micro batches' shares, however it is cut."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from rltrain.algos.aggregation import AggNormalizer, aggregate
from rltrain.config.schema import LossAggMode
from tests.trainer.algos import reference
from tests.trainer.algos.ragged import mask_of, normal, seeds

MODES = get_args(LossAggMode)


@pytest.mark.parametrize("mode", MODES)
@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_shares_sum_to_the_whole(mode: LossAggMode, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask, terms = mask_of(rng, 9, 6), normal(rng, 9, 6)
    normalizer = AggNormalizer.of(mask, 6.0)
    whole = aggregate(terms, mask, mode, normalizer)
    assert float(whole) == pytest.approx(reference.aggregated(terms.numpy(), mask.numpy(), mode, 6.0), abs=1e-12)
    order, cuts = rng.permutation(9), np.sort(rng.integers(0, 10, size=3))  # some parts are empty
    parts = [torch.from_numpy(rows) for rows in np.split(order, cuts)]
    shares = [aggregate(terms[rows], mask[rows], mode, normalizer) for rows in parts]
    assert float(torch.stack(shares).sum()) == pytest.approx(float(whole), abs=1e-12)


@pytest.mark.parametrize(
    ("mode", "loss"),
    [
        ("token-mean", 12 / 4),
        ("seq-mean-token-sum", 12 / 2),
        ("seq-mean-token-mean", (2 + 6) / 2),
        ("seq-mean-token-sum-norm", 6 / 8),
    ],
)
def test_by_hand(mode: LossAggMode, loss: float) -> None:
    terms = torch.tensor([[1.0, 2, 3], [6, 5, 5], [7, 7, 7]])
    mask = torch.tensor([[True] * 3, [True, False, False], [False] * 3])
    assert AggNormalizer.of(mask, 8.0) == AggNormalizer(4, 2, 8.0)
    assert float(aggregate(terms, mask, mode, AggNormalizer.of(mask, 8.0))) == pytest.approx(loss)


@pytest.mark.parametrize("mode", MODES)
def test_a_mini_batch_without_tokens_has_loss_and_gradient_zero(mode: LossAggMode) -> None:
    terms, mask = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3, dtype=torch.bool)
    loss = aggregate(terms, mask, mode, AggNormalizer.of(mask, 3.0))
    loss.backward()
    assert float(loss.detach()) == 0
    assert terms.grad is not None
    assert not terms.grad.any()
