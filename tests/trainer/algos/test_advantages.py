"""Advantage estimators against the papers' formulas, by hand, and by their properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from rltrain.algos.advantages import function_of
from rltrain.config.estimators import ESTIMATORS, needing
from tests.trainer.algos import reference
from tests.trainer.algos.ragged import advantage_case, advantages_of, normal, seeds

GROUPED = needing("group")
PAGE = Path(__file__).parents[3] / "docs" / "trainer" / "algorithms.md"
PLAIN: dict[str, Any] = {
    "values": None, "reward_baselines": None, "gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": True,
}  # fmt: skip


def outcome(scores: list[float], groups: list[int], dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """One reward for each response of three tokens, at its last token."""
    rewards = torch.zeros(len(scores), 3, dtype=dtype)
    rewards[:, -1] = torch.tensor(scores, dtype=dtype)
    mask = torch.ones(len(scores), 3, dtype=torch.bool)
    return {**PLAIN, "token_level_rewards": rewards, "response_mask": mask, "group_ids": torch.tensor(groups)}


def test_every_estimator_of_the_config_is_there() -> None:
    assert all(callable(function_of(name)) and name in vars(reference) for name in ESTIMATORS)


def test_every_estimator_is_on_the_page() -> None:
    assert [name for name in ESTIMATORS if f"\n| `{name}` |" not in PAGE.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_as_in_the_paper(estimator: str, seed: int) -> None:
    case = advantage_case(seed)
    plain = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in case.items()}
    for ours, paper in zip(advantages_of(estimator, case), getattr(reference, estimator)(plain), strict=True):
        np.testing.assert_allclose(ours.numpy(), paper, rtol=1e-9, atol=1e-9)


def test_by_hand() -> None:
    case = outcome([1.0, 0.0, 0.0, 0.0, 5.0, 7.0], [0, 0, 0, 0, 9, 9])
    # group 0: mean 1/4, std 1/2; group 9: mean 6, std sqrt(2)
    grpo = [1.5, -0.5, -0.5, -0.5, -(2**-0.5), 2**-0.5]
    assert advantages_of("grpo", case)[0][:, 0].tolist() == pytest.approx(grpo, abs=4e-6)
    dr_grpo = advantages_of("grpo", case, norm_adv_by_std_in_grpo=False)[0]
    assert dr_grpo[:, 1].tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25, -1, 1], abs=1e-12)
    rloo = advantages_of("rloo", case)[0]
    assert rloo[:, 2].tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3, -2, 2], abs=1e-12)
    remax = advantages_of("remax", case, reward_baselines=torch.tensor([1.0, 1, 0, 0, 6, 6], dtype=torch.float64))[0]
    assert remax[:, 0].tolist() == [0, -1, 0, 0, -1, 1]


def test_gae_by_hand() -> None:
    case = outcome([1.0], [0])
    values = torch.tensor([[0.5, 0.25, 0.75]], dtype=torch.float64)
    # lam 1/2, gamma 1: deltas -0.25, 0.5, 0.25; A = 0.0625, 0.625, 0.25; returns = A + V
    advantages, returns = advantages_of("gae", case, values=values, lam=0.5)
    assert returns[0].tolist() == pytest.approx([0.5625, 0.875, 1.0], abs=1e-12)
    raw = np.array([0.0625, 0.625, 0.25])
    assert advantages[0].tolist() == pytest.approx(((raw - raw.mean()) / raw.std(ddof=1)).tolist(), rel=1e-6)


def test_gae_with_gamma_and_lam_1_has_the_rewards_to_go_as_returns() -> None:
    case = advantage_case(3, rows=12, length=9)
    _, returns = advantages_of("gae", case, gamma=1.0, lam=1.0)
    to_go = case["token_level_rewards"].flip(1).cumsum(1).flip(1) * case["response_mask"]
    torch.testing.assert_close(returns, to_go, rtol=0, atol=1e-12)
    one_step = advantages_of("gae", case, gamma=1.0, lam=0.0)[1]
    assert not torch.allclose(one_step, to_go, atol=1e-3)


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_group_advantages_sum_to_zero(estimator: str, seed: int) -> None:
    case = advantage_case(seed)
    case["response_mask"][:, 0] = True  # so that a row's advantage stands in column 0
    advantages = advantages_of(estimator, case)[0][:, 0]
    for group in case["group_ids"].unique():
        assert abs(float(advantages[case["group_ids"] == group].sum())) < 1e-9


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_whitened_over_the_tokens(estimator: str) -> None:
    case = advantage_case(5, rows=16)
    valid = advantages_of(estimator, case)[0][case["response_mask"]]
    assert float(valid.mean()) == pytest.approx(0, abs=1e-12)
    assert float(valid.std()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_rows_may_come_in_any_order(estimator: str, seed: int) -> None:
    case = advantage_case(seed)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    shuffled = {name: value[order] if isinstance(value, torch.Tensor) else value for name, value in case.items()}
    for plain, other in zip(advantages_of(estimator, case), advantages_of(estimator, shuffled), strict=True):
        torch.testing.assert_close(plain[order], other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_empty_rows_count_in_no_statistic(estimator: str) -> None:
    case = advantage_case(11)
    case["response_mask"][:, 0] = True
    padded = {
        name: torch.cat([value, value[:3]]) if isinstance(value, torch.Tensor) else value
        for name, value in case.items()
    }
    padded["response_mask"][8:] = False
    for plain, other in zip(advantages_of(estimator, case), advantages_of(estimator, padded), strict=True):
        torch.testing.assert_close(other[:8], plain, rtol=0, atol=1e-12)
        assert not other[8:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", [*GROUPED, "reinforce_plus_plus"])
def test_equal_rewards_give_exactly_zero(estimator: str, dtype: torch.dtype) -> None:
    # 0.1 has no exact binary form: the mean of three of them is not 0.1 in every summation
    advantages = advantages_of(estimator, outcome([0.1] * 7, [1] * 7, dtype))[0]
    assert advantages.dtype == dtype
    assert torch.equal(advantages, torch.zeros_like(advantages))


def test_a_group_of_one_has_nothing_to_compare_with() -> None:
    case = outcome([3.0, 1.0, 0.0], [4, 2, 2])
    for estimator in ("grpo", "rloo"):
        advantages = advantages_of(estimator, case)[0]
        assert advantages[0].tolist() == [0, 0, 0]
        assert advantages[1].min() > 0


def test_one_token_alone_and_none_at_all() -> None:
    case = {**advantage_case(1, rows=2), "response_mask": torch.zeros(2, 5, dtype=torch.bool)}
    for estimator in ESTIMATORS:
        assert not any(each.any() for each in advantages_of(estimator, case))
    case["response_mask"][0, 0] = True
    assert advantages_of("gae", case)[0].tolist() == [[0] * 5] * 2


@pytest.mark.parametrize(("estimator", "missing"), [("gae", "values"), ("remax", "reward_baselines")])
def test_what_is_missing_is_named(estimator: str, missing: str) -> None:
    with pytest.raises(ValueError, match=f"{estimator} needs {missing}"):
        advantages_of(estimator, advantage_case(0), **{missing: None})


def test_no_gradient_flows_into_the_critic() -> None:
    case = advantage_case(0)
    advantages, returns = advantages_of("gae", case, values=normal(np.random.default_rng(0), 8, 5).requires_grad_())
    assert not advantages.requires_grad
    assert not returns.requires_grad
