"""What lies under a masked position reaches no result and no gradient, whatever it is; and dtypes are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from rltrain.algos.aggregation import AggNormalizer, aggregate
from rltrain.algos.kl import KL_ESTIMATORS, kl_penalty
from rltrain.algos.metrics import data_metrics, rollout_diff_metrics
from rltrain.algos.policy_losses import POLICY_LOSSES
from rltrain.algos.rewards import apply_kl_to_reward
from rltrain.algos.rollout_correction import rollout_is_weights
from rltrain.algos.value_loss import value_loss_terms
from rltrain.config.estimators import ESTIMATORS
from rltrain.config.schema import LossAggMode, RolloutCorrectionConfig
from tests.trainer.algos.ragged import (
    LOSSES,
    advantage_case,
    advantages_of,
    gradient,
    mask_of,
    normal,
    policy_case,
    spoil,
)

Function = Callable[..., Any]


def same(left: Any, right: Any) -> None:
    """LEFT is RIGHT, bit for bit, and finite."""
    if isinstance(left, Tensor):
        assert left.isfinite().all()
        assert torch.equal(left, right)
    elif isinstance(left, Mapping):
        assert left.keys() == right.keys()
        for name in left:
            same(left[name], right[name])
    elif isinstance(left, tuple):
        for each, other in zip(left, right, strict=True):
            same(each, other)
    else:
        assert left == right


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_advantages(estimator: str, dtype: torch.dtype) -> None:
    case, rng = advantage_case(7), np.random.default_rng(0)
    case = {n: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in case.items()}
    mask = case["response_mask"]
    spoiled = {name: spoil(case[name], mask, rng) for name in ("token_level_rewards", "values")}
    clean = advantages_of(estimator, case)
    same(clean, advantages_of(estimator, case, **spoiled))
    for each in clean:
        assert each.dtype == dtype
        assert not each[~mask].any()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_policy_losses(name: str, dtype: torch.dtype) -> None:
    case, rng = policy_case(8, weights=True), np.random.default_rng(0)
    tables = ("log_probs", "old_log_probs", "advantages", "rollout_is_weights")
    case = replace(case, **{table: getattr(case, table).detach().to(dtype) for table in tables})
    spoiled = replace(case, **{table: spoil(getattr(case, table), case.response_mask, rng) for table in tables})
    (clean_terms, clean_sums), (terms, sums) = POLICY_LOSSES[name](case), POLICY_LOSSES[name](spoiled)
    same((clean_terms, clean_sums), (terms, sums))
    assert terms.dtype == dtype
    assert not terms[~case.response_mask].any()

    def loss(inputs: Any) -> Tensor:
        return gradient(lambda leaf: POLICY_LOSSES[name](replace(inputs, log_probs=leaf))[0], inputs.log_probs)

    same(loss(case), loss(spoiled))
    assert not loss(spoiled)[~case.response_mask].any()


RNG = np.random.default_rng(3)
MASK = mask_of(RNG, 6, 5)
WITH_GRADIENT: dict[str, tuple[int, Function]] = {
    "value_loss": (3, lambda a, b, c: value_loss_terms(a, b, c, MASK, 0.3)[0]),
    **{
        f"aggregate {mode}": (1, lambda a, mode=mode: aggregate(a, MASK, mode, AggNormalizer.of(MASK, 4.0)))
        for mode in get_args(LossAggMode)
    },
    **{kind: (2, lambda a, b, kind=kind: kl_penalty(a, b, kind, MASK)) for kind in KL_ESTIMATORS},
}


def correction(level: Literal["token", "sequence"]) -> Function:
    config = RolloutCorrectionConfig(rollout_is=level, rollout_is_batch_normalize=True)
    return lambda a, b: rollout_is_weights(a, b, MASK, config)


def data(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> dict[str, float]:
    names = ("token_level_scores", "token_level_rewards", "advantages", "returns", "values")
    masks = {"response_mask": MASK, "attention_mask": torch.cat([MASK, MASK], dim=1)}
    return data_metrics({**dict(zip(names, (a, b, c, d, e), strict=True)), **masks}, 5, 5)


WITHOUT_GRADIENT: dict[str, tuple[int, Function]] = {
    "value_loss metrics": (3, lambda a, b, c: value_loss_terms(a, b, c, MASK, 0.3)),
    "apply_kl_to_reward": (3, lambda a, b, c: apply_kl_to_reward(a, b, c, MASK, 0.1, "k3")),
    "token": (2, correction("token")),
    "sequence": (2, correction("sequence")),
    "rollout_diff": (2, lambda a, b: rollout_diff_metrics(a, b, MASK)),
    "data": (5, data),
}


@pytest.mark.parametrize("name", [*WITH_GRADIENT, *WITHOUT_GRADIENT])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rest(name: str, dtype: torch.dtype) -> None:
    count, function = {**WITH_GRADIENT, **WITHOUT_GRADIENT}[name]
    tables = [normal(RNG, 6, 5).to(dtype) for _ in range(count)]
    spoiled = [spoil(table, MASK, RNG) for table in tables]
    result = function(*tables)
    same(result, function(*spoiled))
    for each in result if isinstance(result, tuple) else (result,):
        assert not isinstance(each, Tensor) or each.dtype == dtype
    if name in WITH_GRADIENT:
        slope = gradient(lambda leaf: function(leaf, *spoiled[1:]), spoiled[0])
        same(gradient(lambda leaf: function(leaf, *tables[1:]), tables[0]), slope)
        assert not slope[~MASK].any()
