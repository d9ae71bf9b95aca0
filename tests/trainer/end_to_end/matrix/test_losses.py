"""Policy losses, KL, entropy and importance weights in runs on the real stack."""

from __future__ import annotations

import pytest

from rltrain.algos.kl import kl_penalty
from rltrain.algos.masked import masked_mean, row_means
from tests.trainer.end_to_end.matrix.stage import Played, Stage

pytestmark = pytest.mark.timeout(400)
GRPO = "algorithm.adv_estimator=grpo"
ACTOR = "actor_rollout_ref.actor"
KL_REWARD = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.2")


def test_the_loss_is_made_of_its_terms(stage: Stage) -> None:
    played = stage.play(GRPO, f"{ACTOR}.entropy_coeff=0.5", f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0.25")
    for step in played.steps:
        total = step["actor/pg_loss"] - 0.5 * step["actor/entropy_loss"] + 0.25 * step["actor/kl_loss"]
        assert step["actor/loss"] == pytest.approx(total, abs=1e-6)
        assert step["actor/entropy"] > 2
        assert step["actor/kl_coef"] == 0.25


def test_an_entropy_bonus_keeps_entropy(stage: Stage) -> None:
    with_bonus, without = (stage.play(GRPO, f"{ACTOR}.entropy_coeff={value}") for value in (1.0, 0.0))
    assert with_bonus.hashes(1)[0] == without.hashes(1)[0]
    assert with_bonus.steps[1]["actor/entropy"] > without.steps[1]["actor/entropy"] + 0.01


@pytest.mark.parametrize("mode", ["gspo", "cispo"])
def test_other_losses_learn_other_things_from_the_same_samples(stage: Stage, grpo: Played, mode: str) -> None:
    played = stage.play(GRPO, f"{ACTOR}.policy_loss.loss_mode={mode}", f"{ACTOR}.clip_ratio=0.01")
    assert played.hashes(1)[0] == grpo.hashes(1)[0]
    assert played.hashes(1)[1] != grpo.hashes(1)[1]
    for step in played.steps:
        assert step["actor/pg_clipfrac"] > 0
        assert step["actor/pg_clipfrac_lower"] == 0
        assert step["actor/grad_norm"] > 0


@pytest.mark.parametrize("kind", ["k1", "k2", "low_var_kl", "mse"])
def test_kl_loss(stage: Stage, grpo: Played, kind: str) -> None:
    played = stage.play(GRPO, f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=1", f"{ACTOR}.kl_loss_type={kind}")
    second = played.batches[1]
    # At the first step the policy is its own reference.
    assert played.batches[0]["ref_log_probs"] == pytest.approx(played.batches[0]["old_log_probs"], abs=1e-6)
    kl = kl_penalty(second["old_log_probs"], second["ref_log_probs"], kind, second["response_mask"])
    before = float(masked_mean(kl, second["response_mask"]))
    assert before > 1e-4
    # Over the step's own updates the policy moves on, as far again as over the first step's.
    assert 0.2 * before < played.steps[1]["actor/kl_loss"] < 5 * before
    assert played.hashes(1)[1] != grpo.hashes(1)[1]


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_kl_in_the_reward(stage: Stage, kind: str) -> None:
    control = (f"algorithm.kl_ctrl.type={kind}", "algorithm.kl_ctrl.horizon=640", "algorithm.kl_ctrl.target_kl=0.001")
    played = stage.play(GRPO, *KL_REWARD, *control, "trainer.total_training_steps=3")
    coefficients = [step["actor/reward_kl_penalty_coeff"] for step in played.steps]
    kls = [step["actor/reward_kl_penalty"] for step in played.steps]
    assert kls[0] == pytest.approx(0, abs=1e-6)
    assert kls[1] > 0.001
    # No KL at first, far too much then: by 20 % each way, times 64 samples of 640.
    expected = [0.2, 0.2 * 0.98, 0.2 * 0.98 * 1.02] if kind == "adaptive" else [0.2] * 3
    assert coefficients == pytest.approx(expected)
    second = played.batches[1]
    mask = second["response_mask"]
    kl = (second["old_log_probs"] - second["ref_log_probs"]) * mask
    expected_rewards = second["token_level_scores"] - coefficients[1] * kl
    assert second["token_level_rewards"] == pytest.approx(expected_rewards, abs=1e-6)
    assert float(row_means(kl, mask).mean()) == pytest.approx(kls[1], abs=1e-6)


@pytest.mark.row("F42")
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_importance_weights(stage: Stage, grpo: Played, level: str) -> None:
    correction = "algorithm.rollout_correction"
    plain = stage.play(GRPO, f"{correction}.rollout_is={level}")
    bound = stage.play(GRPO, f"{correction}.rollout_is={level}", f"{correction}.rollout_is_threshold=0.5",
                        f"{correction}.rollout_rs={'token' if level == 'token' else 'seq_max'}_k2",
                        f"{correction}.rollout_rs_threshold=1e-30")  # fmt: skip
    for step in plain.steps:
        assert step["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-5)
        assert step["rollout_corr/kl"] == pytest.approx(0, abs=1e-5)
    first = bound.batches[0]
    # Log-probabilities of engine and actor are the same but for rounding, and any rounding is rejected here.
    kept, mask = first["rollout_rs_kept"], first["response_mask"]
    gone = mask & (first["old_log_probs"] != first["rollout_log_probs"])
    gone = gone if level == "token" else gone.any(-1, keepdim=True).expand_as(gone)
    assert kept[mask].tolist() == (~gone)[mask].tolist()
    share = float((~kept & mask).sum() / mask.sum())
    assert bound.steps[0]["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(share)
    assert bound.steps[0]["actor/loss_tokens"] == (kept & mask).sum()
    assert first["rollout_is_weights"][first["response_mask"]] == pytest.approx(0.5)
    assert not first["rollout_is_weights"][~first["response_mask"]].any()
    # The samples are the same and count half as much.
    assert bound.hashes(1)[0] == plain.hashes(1)[0] == grpo.hashes(1)[0]
    assert bound.hashes(1)[1] != plain.hashes(1)[1]


def test_bypass_takes_the_engines_log_probs(stage: Stage) -> None:
    played = stage.play(GRPO, "algorithm.rollout_correction.bypass_mode=true")
    for step, batch in zip(played.steps, played.batches, strict=True):
        assert (batch["old_log_probs"] == batch["rollout_log_probs"]).all()
        assert "timing_s/old_log_prob" not in step
        assert step["actor/grad_norm"] > 0
