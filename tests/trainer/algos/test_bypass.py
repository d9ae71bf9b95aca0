"""`bypass_mode`: weights, rejection and REINFORCE between the engine and the policy that is being trained, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from rltrain.algos.bypass import correction_now
from rltrain.algos.policy_losses import reinforce
from rltrain.algos.rejection import rollout_rs_kept
from rltrain.algos.rollout_correction import rollout_is_weights
from rltrain.config.schema import RolloutCorrectionConfig
from tests.trainer.algos import reference
from tests.trainer.algos.ragged import gradient, policy_case, seeds, spoil

Level = Literal["token", "sequence"]
CAP, BAND = 1.5, "0.6_1.6"


def config(level: Level | None, cap: float | str = CAP, names: str | None = None) -> RolloutCorrectionConfig:
    return RolloutCorrectionConfig(
        bypass_mode=True,
        loss_type="reinforce",
        rollout_is=level,
        rollout_is_threshold=cap,
        rollout_rs=names,
        rollout_rs_threshold=None if names is None else BAND,
    )


@pytest.mark.parametrize("level", ["token", "sequence", None])
@pytest.mark.parametrize("cap", [CAP, BAND])
@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_the_loss_and_its_gradient_are_those_of_the_definition(
    level: Level | None, cap: float | str, seed: int
) -> None:
    """L = -w A log pi of each token that is kept, w without a gradient; log pi of the policy of this pass."""
    case = policy_case(seed)
    mask, chosen = case.response_mask, config(level, cap, "seq_mean_k1")

    def terms(log_probs: torch.Tensor) -> torch.Tensor:
        weights, kept, _ = correction_now(log_probs, case.old_log_probs, mask, chosen)
        return reinforce(replace(case, log_probs=log_probs, rollout_is_weights=weights))[0] * kept

    expected, slope = np.zeros(mask.shape), np.zeros(mask.shape)
    for row in range(len(mask)):
        places = reference.tokens(mask.numpy(), row)
        gaps = [float(case.log_probs.detach()[row, t] - case.old_log_probs[row, t]) for t in places]
        if not places or not math.log(0.6) <= -sum(gaps) / len(gaps) <= math.log(1.6):
            continue
        for t, gap in zip(places, gaps, strict=True):
            rho = 1.0 if level is None else math.exp(gap if level == "token" else sum(gaps))
            held = min(rho, CAP) if cap == CAP else rho * (0.6 <= rho <= 1.6)
            weight = 1.0 if level is None else held
            slope[row, t] = -weight * float(case.advantages[row, t])
            expected[row, t] = slope[row, t] * float(case.log_probs.detach()[row, t])
    np.testing.assert_allclose(terms(case.log_probs).detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradient(terms, case.log_probs).numpy(), slope, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("level", ["token", "sequence"])
@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_it_corrects_as_the_three_policies_do(level: Level, seed: int) -> None:
    """Before the first update the policy of the pass is the actor: both modes give the same weights and metrics."""
    case = policy_case(seed)
    mask, chosen = case.response_mask, config(level, BAND, "token_k1")
    actor, engine = case.log_probs.detach(), case.old_log_probs
    weights, kept, sums = correction_now(actor, engine, mask, chosen)
    wanted, metrics = rollout_is_weights(actor, engine, mask, chosen)
    passes, rejected = rollout_rs_kept(actor, engine, mask, chosen)
    assert weights is not None
    assert wanted is not None
    assert passes is not None
    torch.testing.assert_close(weights, wanted, rtol=0, atol=0)
    assert torch.equal(kept, passes & mask)
    count, found = int(mask.sum()), metrics | rejected
    for name, total in sums.items():
        # Shares of the ratios of whole answers are over answers there.
        if count and not (level == "sequence" and "ratio_fraction" in name):
            assert float(total) / count == pytest.approx(found[f"rollout_corr/{name}"]), name


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_nothing_is_read_outside_of_the_mask(seed: int) -> None:
    case, rng = policy_case(seed), np.random.default_rng(seed)
    mask, chosen = case.response_mask, config("sequence", BAND, "seq_sum_k1,token_k1")
    clean = correction_now(case.log_probs, case.old_log_probs, mask, chosen)
    spoilt = correction_now(spoil(case.log_probs, mask, rng), spoil(case.old_log_probs, mask, rng), mask, chosen)
    for one, other in zip(clean[:2], spoilt[:2], strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)
    assert {name: float(each) for name, each in clean[2].items()} == {n: float(e) for n, e in spoilt[2].items()}


def test_without_correction_nothing_is_weighed_or_left_out() -> None:
    case = policy_case(1)
    weights, kept, sums = correction_now(case.log_probs, case.old_log_probs, case.response_mask, config(None))
    assert weights is None
    assert torch.equal(kept, case.response_mask)
    assert not sums
