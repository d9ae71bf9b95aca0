"""Every advantage estimator in a run on the real stack, and how its baseline shows in the samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rltrain.core.batch import Batch
from rltrain.core.errors import RunFailure
from tests.trainer.end_to_end.matrix.stage import NUM_SAMPLES, N, Played, Stage, first_advantages, groups, scores

pytestmark = pytest.mark.timeout(400)
FILTER = ("algorithm.adv_estimator=grpo", "algorithm.filter_groups.enable=true")


def whitened(batch: Batch) -> None:
    """Mean 0 and variance 1 over the tokens of BATCH."""
    values = batch["advantages"][batch["response_mask"]]
    assert float(values.mean()) == pytest.approx(0, abs=1e-5)
    assert float(values.std()) == pytest.approx(1, abs=1e-3)


def centred(batch: Batch) -> Tensor:
    """Scores minus the mean of their group, `[prompts, N]`."""
    by_prompt = groups(batch, scores(batch))
    return by_prompt - by_prompt.mean(1, keepdim=True)


def test_gae_learns_a_critic_first_and_the_actor_once_it_is_warm(stage: Stage) -> None:
    played = stage.play("algorithm.lam=0.9", "algorithm.gamma=0.95", "trainer.critic_warmup=2")
    first, second = played.steps
    assert [step["critic/optimizer_steps"] for step in played.steps] == [4, 4]
    assert "actor/pg_loss" not in first
    assert second["actor/optimizer_steps"] == 4
    assert [step["audit"]["optimizer_steps"] for step in played.steps] == [0, 4]
    # The first step has left the actor as it was, so the engine's weights are still version 0.
    assert {version for batch in played.batches for version in batch["policy_version"].tolist()} == {0}
    assert played.hashes(1)[1] != played.hashes(2)[1]
    for batch in played.batches:
        whitened(batch)
        last = batch["response_mask"].sum(-1, keepdim=True) - 1
        # After the last token there is nothing: its return is the score.
        assert batch["returns"].gather(1, last).squeeze(1) == pytest.approx(scores(batch), abs=1e-6)


def test_grpo_divides_by_the_deviation_of_the_group(grpo: Played) -> None:
    for step, batch in zip(grpo.steps, grpo.batches, strict=True):
        deviations = groups(batch, scores(batch)).std(1, keepdim=True)
        assert (deviations > 0).any()
        expected = centred(batch) / (deviations + 1e-6)
        assert groups(batch, first_advantages(batch)) == pytest.approx(expected, abs=1e-5)
        assert not any(name.startswith(("critic/vf", "critic/grad_norm")) for name in step)
        assert step["actor/optimizer_steps"] == 4


def test_dr_grpo_does_not(stage: Stage, grpo: Played) -> None:
    mode = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"
    played = stage.play("algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=false", mode)
    for batch in played.batches:
        assert groups(batch, first_advantages(batch)) == pytest.approx(centred(batch), abs=1e-6)
    # The same samples teach something else.
    assert played.hashes(1)[0] == grpo.hashes(1)[0]
    assert played.hashes(1)[1] != grpo.hashes(1)[1]


def test_rloo_leaves_the_sample_itself_out(stage: Stage) -> None:
    for batch in stage.play("algorithm.adv_estimator=rloo").batches:
        expected = centred(batch) * N / (N - 1)
        assert groups(batch, first_advantages(batch)) == pytest.approx(expected, abs=1e-6)


def test_reinforce_plus_plus_whitens_over_the_batch(stage: Stage) -> None:
    played = stage.play("algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=0.9")
    for batch in played.batches:
        whitened(batch)
        returns, mask = batch["returns"], batch["response_mask"]
        both = mask[:, :-1] & mask[:, 1:]
        # Earlier tokens see the reward discounted.
        assert returns[:, :-1][both] == pytest.approx(0.9 * returns[:, 1:][both], abs=1e-6)


def test_reinforce_plus_plus_with_baseline_takes_the_group_mean_off_first(stage: Stage) -> None:
    for batch in stage.play("algorithm.adv_estimator=reinforce_plus_plus_baseline").batches:
        whitened(batch)
        found, expected = first_advantages(batch), centred(batch).flatten()
        # Whitening is a straight line.
        assert float(torch.corrcoef(torch.stack([found, expected]))[0, 1]) == pytest.approx(1, abs=1e-5)


def test_remax_takes_the_greedy_answers_score_off(stage: Stage) -> None:
    played = stage.play("algorithm.adv_estimator=remax")
    for batch in played.batches:
        baselines = batch["reward_baselines"]
        assert (groups(batch, baselines) == baselines[::N, None]).all()
        assert first_advantages(batch) == pytest.approx(scores(batch) - baselines, abs=1e-6)
    assert any((batch["reward_baselines"] > 0).any() for batch in played.batches)


def test_dapo_fills_the_batch_with_groups_that_differ(stage: Stage) -> None:
    played = stage.play(
        *FILTER,
        "actor_rollout_ref.actor.clip_ratio_low=0.2",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        "reward_model.overlong_buffer.enable=true",
        "reward_model.overlong_buffer.len=2",
        "reward_model.overlong_buffer.penalty_factor=0.5",
    )
    for step, batch in zip(played.steps, played.batches, strict=True):
        assert len(batch) == NUM_SAMPLES
        by_prompt = groups(batch, scores(batch))
        assert (by_prompt.amax(1) > by_prompt.amin(1)).all()
        assert step["train/num_gen_batches"] >= 1
        lengths = batch["response_mask"].sum(-1)
        penalties = [sample.reward_parts["overlong"] for sample in batch.samples]
        assert penalties == pytest.approx([{5: -0.25, 6: -0.5}.get(length, 0.0) for length in lengths.tolist()])
        rescored = step["audit"]["rescored"]
        assert rescored["reward"] == rescored["again"]


def test_dapo_counts_rounds_and_gives_up_at_the_limit(stage: Stage) -> None:
    # Without a penalty for length most groups of an untrained policy score nothing at all.
    played = stage.play(*FILTER, "trainer.total_training_steps=1")
    rounds = played.steps[0]["train/num_gen_batches"]
    assert rounds >= 2
    words = rf"step 1: after 1 rounds of generation only \d+ of {NUM_SAMPLES} samples lie in groups whose 'acc' differs"
    with pytest.raises(RunFailure, match=words):
        stage.play(*FILTER, "algorithm.filter_groups.max_num_gen_batches=1")
