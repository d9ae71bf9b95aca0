"""Policy losses against the papers' formulas, by hand, and by their gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from rltrain.algos.aggregation import AggNormalizer, aggregate
from rltrain.algos.policy_losses import POLICY_LOSSES, PolicyLossInputs
from rltrain.config.schema.actor import PolicyLossConfig
from tests.trainer.algos import reference
from tests.trainer.algos.ragged import LOSSES, gradient, policy_case, seeds


def one_token(ratio: float, advantage: float, c: float | None = 3.0) -> PolicyLossInputs:
    cell = torch.ones(1, 1, dtype=torch.float64)
    return PolicyLossInputs(
        (cell * ratio).log(),
        cell * 0,
        cell * advantage,
        cell > 0,
        None,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=c,
    )


def slope(name: str, inputs: PolicyLossInputs) -> Tensor:
    """Gradient of the summed loss with regard to log_probs, `[B, R]`."""
    return gradient(lambda leaf: POLICY_LOSSES[name](replace(inputs, log_probs=leaf))[0], inputs.log_probs)


def test_every_loss_of_the_config_is_there() -> None:
    assert sorted(POLICY_LOSSES) == sorted(get_args(PolicyLossConfig.model_fields["loss_mode"].annotation))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("weights", [False, True])
@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_as_in_the_paper(name: str, weights: bool, seed: int) -> None:
    inputs = policy_case(seed, weights=weights)
    terms, _ = POLICY_LOSSES[name](inputs)
    np.testing.assert_allclose(terms.detach().numpy(), reference.policy_loss(name, inputs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope_is"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 2.0, -2.4, -2.4),  # within 1.28: no clip
        (1.5, 2.0, -2.56, 0.0),  # held at 1 + 0.28
        (0.5, 2.0, -1.0, -1.0),  # below the range with A > 0: not clipped
        (0.5, -2.0, 1.6, 0.0),  # held at 1 - 0.2
        (2.0, -2.0, 4.0, 4.0),  # above the range with A < 0: not clipped …
        (5.0, -2.0, 6.0, 0.0),  # … up to dual clip's c |A|
        (5.0, 2.0, -2.56, 0.0),  # dual clip is for A < 0 alone
    ],
)
def test_vanilla_by_hand(ratio: float, advantage: float, loss: float, slope_is: float) -> None:
    inputs = one_token(ratio, advantage)
    assert float(POLICY_LOSSES["vanilla"](inputs)[0]) == pytest.approx(loss)
    assert float(slope("vanilla", inputs)) == pytest.approx(slope_is)


def test_without_dual_clip_the_loss_is_not_bounded() -> None:
    assert float(POLICY_LOSSES["vanilla"](one_token(5.0, -2.0, c=None))[0]) == pytest.approx(10.0)


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    assert float(slope("cispo", one_token(5.0, 2.0))) == pytest.approx(-1.28 * 2)
    assert float(slope("vanilla", one_token(5.0, 2.0))) == 0


@pytest.mark.parametrize("name", LOSSES)
def test_ratio_1_gives_the_plain_policy_gradient(name: str) -> None:
    """REINFORCE: the gradient of -A log pi, through a real softmax."""
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 6, 7, generator=rng, dtype=torch.float64)
    actions = torch.randint(7, (4, 6, 1), generator=rng)
    case = policy_case(1, rows=4, length=6)

    def log_probs(leaf: Tensor) -> Tensor:
        return leaf.log_softmax(-1).gather(-1, actions).squeeze(-1)

    def ours(leaf: Tensor) -> Tensor:
        inputs = replace(case, log_probs=log_probs(leaf), old_log_probs=log_probs(logits))
        return POLICY_LOSSES[name](inputs)[0]

    def plain(leaf: Tensor) -> Tensor:
        return -case.advantages * log_probs(leaf) * case.response_mask

    torch.testing.assert_close(gradient(ours, logits), gradient(plain, logits), rtol=1e-12, atol=1e-12)


def test_gspo_has_the_gradient_of_the_whole_sequences_ratio() -> None:
    """With seq-mean-token-mean, one advantage a response: the gradient of the mean of -A s (arXiv:2507.18071)."""
    case = policy_case(2, spread=0.02)  # nothing clipped
    case = replace(case, advantages=case.advantages[:, :1].expand_as(case.advantages))
    normalizer = AggNormalizer.of(case.response_mask, 1.0)

    def ours(leaf: Tensor) -> Tensor:
        terms, _ = POLICY_LOSSES["gspo"](replace(case, log_probs=leaf))
        return aggregate(terms, case.response_mask, "seq-mean-token-mean", normalizer)

    def paper(leaf: Tensor) -> Tensor:
        losses = []
        for row, mask in enumerate(case.response_mask):
            if mask.any():
                ratio = (leaf[row][mask] - case.old_log_probs[row][mask]).mean().exp()
                losses.append(-case.advantages[row, 0] * ratio)
        return torch.stack(losses).mean()

    torch.testing.assert_close(gradient(ours, case.log_probs), gradient(paper, case.log_probs), rtol=1e-12, atol=1e-14)


def test_gspo_does_not_depend_on_the_other_rows() -> None:
    case = policy_case(4)
    whole = POLICY_LOSSES["gspo"](case)[0]
    fields = ("log_probs", "old_log_probs", "advantages", "response_mask")
    for row in range(len(whole)):
        alone = replace(case, **{name: getattr(case, name)[row : row + 1] for name in fields})
        torch.testing.assert_close(POLICY_LOSSES["gspo"](alone)[0][0], whole[row], rtol=0, atol=1e-14)


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_within_the_range_nothing_is_clipped(seed: int) -> None:
    case = policy_case(seed, spread=0.02)
    wide = replace(case, clip_ratio_low=0.99, clip_ratio_high=99.0, clip_ratio_c=None)
    for name in LOSSES:
        (narrow_terms, sums), (wide_terms, _) = POLICY_LOSSES[name](case), POLICY_LOSSES[name](wide)
        assert torch.equal(narrow_terms, wide_terms)
        assert torch.equal(slope(name, case), slope(name, wide))
        assert float(sums["pg_clipfrac"]) == float(sums["pg_clipfrac_lower"]) == 0


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_dual_clip_bounds_negative_advantages_alone(seed: int) -> None:
    case = policy_case(seed, spread=3.0)
    with_bound, sums = POLICY_LOSSES["vanilla"](case)
    without, _ = POLICY_LOSSES["vanilla"](replace(case, clip_ratio_c=None))
    positive = case.advantages >= 0
    assert torch.equal(with_bound[positive], without[positive])
    assert bool((with_bound <= (3.0 * case.advantages.abs()) + 1e-12).all())
    assert int(sums["pg_clipfrac_lower"]) == int((with_bound != without).sum())


def test_metrics_are_sums_over_tokens() -> None:
    inputs = one_token(1.0, 1.0)
    wide = {
        "log_probs": torch.tensor([[1.5, 0.5, 1.1, 9.0, 1.0]], dtype=torch.float64).log(),
        "old_log_probs": torch.zeros(1, 5, dtype=torch.float64),
        "advantages": torch.tensor([[1.0, -1, 1, -1, 1]], dtype=torch.float64),
        "response_mask": torch.tensor([[True, True, True, True, False]]),
    }
    _, sums = POLICY_LOSSES["vanilla"](replace(inputs, **wide))
    assert (float(sums["pg_clipfrac"]), float(sums["pg_clipfrac_lower"])) == (2, 1)
    assert float(sums["ppo_kl"]) == pytest.approx(-np.log(1.5 * 0.5 * 1.1 * 9))
    assert float(POLICY_LOSSES["cispo"](replace(inputs, **wide))[1]["pg_clipfrac"]) == 3
    assert not any(each.requires_grad for name in LOSSES for each in POLICY_LOSSES[name](policy_case(0))[1].values())


def test_no_gradient_flows_through_the_rollouts_weights() -> None:
    case = policy_case(0, weights=True)
    assert case.rollout_is_weights is not None
    leaf = case.rollout_is_weights.clone().requires_grad_()
    POLICY_LOSSES["vanilla"](replace(case, rollout_is_weights=leaf))[0].sum().backward()
    assert leaf.grad is None


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_absurd_ratios_stay_finite(name: str, shift: float) -> None:
    case = policy_case(0)
    far = replace(case, old_log_probs=case.old_log_probs + shift, clip_ratio_c=None)
    assert bool(POLICY_LOSSES[name](far)[0].isfinite().all())
    assert bool(slope(name, far).isfinite().all())
