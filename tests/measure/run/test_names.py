"""What peers call a metric: that each is recognised, and filed as the data says."""

from __future__ import annotations

import pytest

from rlcheck.facts.run import Curve
from rlcheck.measure.run.names import Name, filed, framework_of, frameworks

KNOWN = set(frameworks())


def one(value: float = 2.0) -> Curve:
    return Curve(steps=(1, 2), values=(value, value), nonfinite=(3,))


def test_these_frameworks_are_known() -> None:
    assert {"rltrain", "rltrain-sft", "verl", "openrlhf", "trl", "slime", "skyrl", "prime-rl", "nemo-rl"} == KNOWN
    assert all(framework.sources for framework in frameworks().values())


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_each_is_recognised_by_its_own_names(name: str) -> None:
    framework = frameworks()[name]
    assert framework_of(framework.signs) == name
    assert framework_of([framework.prefix + sign for sign in framework.signs]) == name
    own = framework.signs if name == "verl" else framework.names or framework.signs  # verl's are of old releases
    assert framework_of([sign.replace("{}", "all") for sign in own]) == name


def test_a_stranger_is_not_guessed() -> None:
    assert framework_of(["loss", "reward", "step_time"]) == ""
    assert framework_of([]) == ""


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_no_name_is_both_mapped_and_left_out_and_no_sign_is_mapped_twice(name: str) -> None:
    framework = frameworks()[name]
    assert not set(framework.names) & set(framework.left_out)
    targets = [target if isinstance(target, str) else target.to for target in framework.names.values()]
    assert all("/" in target for target in targets)


def test_names_values_and_prefixes() -> None:
    trl = filed({"train/reward": one(), "train/completions/mean_length": one(), "custom": one()}, "trl")
    assert trl["critic/score/mean"] == Curve(steps=(1, 2), values=(2.0, 2.0), nonfinite=(3,), name="train/reward")
    assert "response_length/mean" in trl
    assert trl["custom"] == one()
    nemo = filed({"train/token_mult_prob_error": one(1.25)}, "nemo-rl")
    assert nemo["training/rollout_log_probs_diff_mean"].values == (0.25, 0.25)
    prime = filed({"perf/mfu": one(40.0)}, "prime-rl")
    assert prime["perf/mfu/actor"].values == pytest.approx((0.4, 0.4))
    skyrl = filed({"eval/gsm8k/avg_score": one()}, "skyrl")
    assert list(skyrl) == ["val-core/gsm8k/reward/mean@1"]


def test_what_has_verls_name_already_stays() -> None:
    curves = {"critic/score/mean": one(1.0), "train/reward": one(5.0)}
    assert filed(curves, "trl")["critic/score/mean"].values == (1.0, 1.0)
    assert filed(curves, "verl") == curves
    assert filed(curves, "") == curves


def test_what_means_something_else_keeps_its_name() -> None:
    for name, framework in frameworks().items():
        for left in framework.left_out:
            assert list(filed({left: one()}, name)) == [left]


def test_a_conversion_says_why() -> None:
    for framework in frameworks().values():
        for target in framework.names.values():
            assert isinstance(target, str) or target.why or target == Name(to=target.to)
