"""KL estimators, controllers, and KL in the reward."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from rltrain.algos.kl import KL_ESTIMATORS, AdaptiveKl, FixedKl, kl_controller, kl_penalty
from rltrain.algos.rewards import apply_kl_to_reward
from rltrain.config.schema import KlCtrlConfig
from tests.trainer.algos.ragged import gradient, mask_of, normal, seeds

P = torch.tensor([0.5, 0.2, 0.2, 0.1], dtype=torch.float64)
Q = torch.tensor([0.4, 0.3, 0.1, 0.2], dtype=torch.float64)


@pytest.mark.parametrize(
    ("kinds", "value"),
    [(("kl", "k1"), -0.5), (("abs",), 0.5), (("mse", "k2"), 0.125), (("low_var_kl", "k3"), math.exp(0.5) - 1.5)],
)
def test_by_hand(kinds: tuple[str, ...], value: float) -> None:
    for kind in kinds:
        assert float(kl_penalty(torch.tensor(-1.5), torch.tensor(-1.0), kind)) == pytest.approx(value)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_expectation_is_the_exact_kl(kind: str) -> None:
    exact = float((P * (P / Q).log()).sum())
    assert float((P * kl_penalty(P.log(), Q.log(), kind)).sum()) == pytest.approx(exact, abs=1e-12)


def test_k1_of_samples_is_unbiased() -> None:
    actions = torch.multinomial(P, 200_000, replacement=True, generator=torch.Generator().manual_seed(0))
    estimates = kl_penalty(P.log()[actions], Q.log()[actions], "k1")
    error = float(estimates.mean() - (P * (P / Q).log()).sum())
    assert abs(error) < 4 * float(estimates.std()) / math.sqrt(len(actions))


def test_k2_has_the_gradient_of_the_kl_and_k1_none_on_average() -> None:
    logits = P.log()
    exact = gradient(lambda leaf: (leaf.softmax(0) * (leaf.log_softmax(0) - Q.log())).sum(), logits)

    def mean_of(kind: str) -> torch.Tensor:
        return gradient(lambda leaf: P * kl_penalty(leaf.log_softmax(0), Q.log(), kind), logits)

    torch.testing.assert_close(mean_of("k2"), exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(mean_of("k1"), torch.zeros_like(exact), rtol=0, atol=1e-12)


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_k3_is_never_negative_and_bounded(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for scale in (1e-8, 1e-4, 1.0, 100.0):
        for dtype in (torch.float32, torch.float64):
            k3 = kl_penalty(normal(rng, 50, scale=scale).to(dtype), torch.zeros(50, dtype=dtype), "k3")
            assert 0 <= float(k3.min()) <= float(k3.max()) <= 10


def test_k3_is_accurate_between_close_policies() -> None:
    k3 = kl_penalty(torch.tensor(-1e-3), torch.tensor(0.0), "k3")
    assert float(k3) == pytest.approx(5.0016671e-7, rel=1e-3)  # exp(d) - 1 - d in float32 would be 4.8e-7


def test_adaptive_controller_by_hand() -> None:
    controller = AdaptiveKl(0.5, target_kl=0.1, horizon=1000)
    controller.update(0.11, num_samples=100)  # 10 % above the target
    assert controller.value == pytest.approx(0.5 * 1.01)
    controller.update(5.0, num_samples=100)  # held at + 20 %
    assert controller.value == pytest.approx(0.5 * 1.01 * 1.02)
    controller.update(-1.0, num_samples=100)  # held at - 20 %
    assert controller.value == pytest.approx(0.5 * 1.01 * 1.02 * 0.98)
    controller.update(float("nan"), num_samples=100)
    resumed = AdaptiveKl(0.0, 0.1, 1000)
    resumed.load_state_dict(controller.state_dict())
    assert resumed.value == controller.value == pytest.approx(0.5 * 1.01 * 1.02 * 0.98)


def test_controller_of_the_config() -> None:
    adaptive = KlCtrlConfig(type="adaptive", kl_coef=0.2, target_kl=0.3, horizon=4)
    assert kl_controller(adaptive) == AdaptiveKl(0.2, 0.3, 4)
    fixed = kl_controller(KlCtrlConfig(kl_coef=0.7))
    fixed.update(99.0, 99)
    fixed.load_state_dict({"value": 0.1})
    assert fixed == FixedKl(0.7)
    assert fixed.state_dict() == {"value": 0.7}


@pytest.mark.parametrize("kind", list(KL_ESTIMATORS))
def test_kl_in_the_reward(kind: str) -> None:
    rng = np.random.default_rng(2)
    mask, scores, old, ref = mask_of(rng, 5, 4), normal(rng, 5, 4), normal(rng, 5, 4), normal(rng, 5, 4)
    rewards, mean = apply_kl_to_reward(scores, old, ref, mask, coef=0.3, kind=kind)
    means = []
    for row in range(5):
        each = [float(kl_penalty(old[row, t], ref[row, t], kind)) for t in range(4) if mask[row, t]]
        if each:
            means.append(sum(each) / len(each))
        expected = iter(each)
        for t in range(4):
            value = float(scores[row, t]) - 0.3 * next(expected) if mask[row, t] else 0.0
            assert float(rewards[row, t]) == pytest.approx(value, abs=1e-12)
    assert mean == pytest.approx(sum(means) / len(means), abs=1e-12)
