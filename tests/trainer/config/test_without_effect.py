"""What `rlcheck config` says of rltrain's keys without effect, held against the code: another value changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch

from rlcheck.measure.config.effects import Row, effects_of
from rlcheck.measure.config.rltrain_data import TRAINER
from rltrain.algos.advantages import compute_advantages
from rltrain.algos.aggregation import AggNormalizer, aggregate
from rltrain.algos.kl import kl_controller
from rltrain.algos.policy_losses import POLICY_LOSSES
from rltrain.algos.policy_losses.inputs import PolicyLossInputs
from rltrain.algos.rollout_correction import rollout_is_weights
from rltrain.config.schema.algorithm import KlCtrlConfig, RolloutCorrectionConfig
from rltrain.config.schema.model import OptimConfig
from rltrain.controller.rollout import val_sampling
from rltrain.rewards.spec import spec_of
from rltrain.workers.fsdp.actor import ActorLoss
from rltrain.workers.fsdp.forward import Policy, TokenStats
from rltrain.workers.fsdp.optim import Schedule
from tests.trainer.algos.ragged import mask_of, normal
from tests.trainer.config.test_resolve import resolved

A = "actor_rollout_ref.actor"
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
MASK = mask_of(np.random.default_rng(3), 9, 6)
NUMBERS = normal(np.random.default_rng(4), 9, 6)


def rows() -> tuple[Row, ...]:
    effects = effects_of("rltrain")
    assert effects is not None
    return effects.rows


def off(key: str, switch: str) -> tuple[Any, ...]:
    """The values of SWITCH with which KEY is said to have no effect."""
    return next(row.off[switch] for row in rows() if key in row.keys and switch in row.off)


def test_every_source_is_there_and_names_a_key_of_its_row() -> None:
    for row in rows():
        text = (TRAINER / row.source).read_text()
        names = [key.rstrip(".").split(".")[-1] for key in (*row.keys, *row.off)]
        assert any(name in text for name in (*names, "inputs.clip_ratio_c")), row.source


def advantages(estimator: str, gamma: float, lam: float) -> torch.Tensor:
    return compute_advantages(
        estimator, token_level_rewards=NUMBERS, response_mask=MASK, group_ids=GROUPS, values=NUMBERS.flip(0),
        reward_baselines=NUMBERS.sum(dim=-1), gamma=gamma, lam=lam, norm_adv_by_std_in_grpo=True,
    )[0]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "values"), [("algorithm.lam", ((1.0, 1.0), (1.0, 0.4))), ("algorithm.gamma", ((1.0, 1.0), (0.4, 1.0)))]
)
def test_discounts_that_an_estimator_does_not_read(key: str, values: tuple[tuple[float, float], ...]) -> None:
    for estimator in off(key, "algorithm.adv_estimator"):
        first, other = (advantages(estimator, gamma, lam) for gamma, lam in values)
        assert torch.equal(first, other), estimator
    first, other = (advantages("gae", gamma, lam) for gamma, lam in values)
    assert not torch.equal(first, other)


def loss(name: str, bound: float) -> torch.Tensor:
    inputs = PolicyLossInputs(NUMBERS * 3, NUMBERS * 0, -NUMBERS.abs(), MASK, None, 0.2, 0.2, bound)
    return POLICY_LOSSES[name](inputs)[0]


def test_the_dual_clip_of_losses_that_do_not_read_it() -> None:
    for name in off(f"{A}.clip_ratio_c", f"{A}.policy_loss.loss_mode"):
        assert torch.equal(loss(name, 3.0), loss(name, 1.5))
    assert not torch.equal(loss("vanilla", 3.0), loss("vanilla", 1.5))


def test_the_divisor_of_other_aggregations() -> None:
    def summed(mode: Any, scale: float) -> float:
        return float(aggregate(NUMBERS, MASK, mode, AggNormalizer.of(MASK, scale)))

    for mode in off(f"{A}.loss_scale_factor", f"{A}.loss_agg_mode"):
        assert summed(mode, 6.0) == summed(mode, 60.0)
    assert summed("seq-mean-token-sum-norm", 6.0) != summed("seq-mean-token-sum-norm", 60.0)


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_a_fixed_coefficient_has_no_target(kind: Literal["fixed", "adaptive"]) -> None:
    def after(target: float) -> float:
        controller = kl_controller(KlCtrlConfig(type=kind, target_kl=target, horizon=100))
        controller.update(0.3, 50)
        return controller.value

    is_read = (kind,) != off("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.type")
    assert (after(0.1) != after(9.0)) is is_read


def test_thresholds_of_no_correction() -> None:
    def weights(level: Literal["token"] | None, threshold: float) -> torch.Tensor | None:
        config = RolloutCorrectionConfig(rollout_is=level, rollout_is_threshold=threshold)
        return rollout_is_weights(NUMBERS, NUMBERS.flip(0), MASK, config)[0]

    levels = off("algorithm.rollout_correction.rollout_is_threshold", "algorithm.rollout_correction.rollout_is")
    assert levels == (None,)
    assert weights(None, 2.0) is weights(None, 1.1) is None
    first, other = weights("token", 2.0), weights("token", 1.1)
    assert first is not None
    assert other is not None
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("change", "is_read"),
    [
        (lambda ratio: OptimConfig(lr_warmup_steps=4, lr_warmup_steps_ratio=ratio), False),
        (lambda ratio: OptimConfig(lr_warmup_steps_ratio=ratio), True),
        (lambda ratio: OptimConfig(lr_scheduler_type="constant", min_lr_ratio=ratio), False),
        (lambda ratio: OptimConfig(lr_scheduler_type="cosine", min_lr_ratio=ratio), True),
    ],
)
def test_warm_up_and_floor_of_the_learning_rate(change: Callable[[float], OptimConfig], is_read: bool) -> None:
    first, other = (Schedule.of(change(ratio), 20) for ratio in (0.1, 0.5))
    assert ([first.lr(at) for at in range(20)] != [other.lr(at) for at in range(20)]) is is_read


def actor_loss(*overrides: str) -> float:
    """The actor's own loss of fixed log-probabilities: what the forward pass would say."""
    policy = cast(Policy, lambda rows, entropy: TokenStats(rows["log_probs"], None))  # pyright: ignore[reportUnknownLambdaType]
    config = resolved(f"{A}.entropy_coeff=0", *overrides).actor_rollout_ref.actor
    numbers = {
        "log_probs": -NUMBERS.abs(),
        "old_log_probs": -NUMBERS.abs() - 0.1,
        "ref_log_probs": -NUMBERS.abs() - 0.3,
    }
    rows = {**numbers, "advantages": NUMBERS, "response_mask": MASK}
    return float(ActorLoss(policy, config)(rows, AggNormalizer.of(MASK, 6.0))[0])


@pytest.mark.parametrize(("key", "values"), [("kl_loss_coef", ("0.1", "0.5")), ("kl_loss_type", ("k1", "k2"))])
def test_the_kl_loss_that_is_not_used(key: str, values: tuple[str, str]) -> None:
    assert off(f"{A}.{key}", f"{A}.use_kl_loss") == (False,)
    for used in ("false", "true"):
        first, other = (
            actor_loss(f"{A}.use_kl_loss={used}", f"{A}.kl_loss_coef=0.1", f"{A}.{key}={v}") for v in values
        )
        assert (first != other) is (used == "true")


@pytest.mark.parametrize("sampled", ["false", "true"])
def test_the_temperature_of_greedy_validation(sampled: str) -> None:
    section = "actor_rollout_ref.rollout.val_kwargs"
    assert off(f"{section}.temperature", f"{section}.do_sample") == (False,)
    first, other = (
        val_sampling(resolved(f"{section}.do_sample={sampled}", f"{section}.temperature={value}"))
        for value in (0.5, 0.9)
    )
    assert (first != other) is (sampled == "true")


def test_the_name_of_a_function_in_no_file(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def f(**_): return 1.0\n\n\ndef g(**_): return 0.0\n")
    for path in ([], [f"custom_reward_function.path={file}"]):
        first, other = (spec_of(resolved(*path, f"custom_reward_function.name={name}")) for name in "fg")
        assert (first != other) is bool(path)
