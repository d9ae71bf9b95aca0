"""The arithmetic of batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltrain.config import BatchPlan, Machine, RunConfig, load, resolve
from rltrain.workers.fsdp.split import deal
from tests.trainer.config import SMALL

BASE = load(SMALL)


def config(prompts: int, n: int, mini: int, world: int, micro: int | None, epochs: int) -> RunConfig:
    parts = BASE.actor_rollout_ref
    actor = parts.actor.model_copy(
        update={"ppo_mini_batch_size": mini, "ppo_micro_batch_size_per_gpu": micro, "ppo_epochs": epochs}
    )
    rollout = parts.rollout.model_copy(update={"n": n})
    changed = BASE.model_copy(
        update={
            "data": BASE.data.model_copy(update={"train_batch_size": prompts}),
            "actor_rollout_ref": parts.model_copy(update={"actor": actor, "rollout": rollout}),
            "trainer": BASE.trainer.model_copy(update={"n_gpus_per_node": world}),
        }
    )
    return resolve(changed, Machine("cpu", 0, 2))


@given(
    minis=st.integers(1, 6),
    mini=st.integers(1, 40),
    n=st.integers(1, 9),
    world=st.integers(1, 9),
    micro=st.none() | st.integers(1, 50),
    epochs=st.integers(1, 4),
)
def test_every_sample_is_counted_once(
    minis: int, mini: int, n: int, world: int, micro: int | None, epochs: int
) -> None:
    plan = BatchPlan.of(config(minis * mini, n, mini, world, micro, epochs))
    assert plan.samples_per_step == plan.num_mini_batches * plan.mini_batch_samples
    dealt = [len(rank) for rank in deal([1] * plan.mini_batch_samples, world, balance=True)]
    assert sum(dealt) == plan.mini_batch_samples
    assert max(dealt) == plan.samples_per_rank_per_mini_batch
    said = "or".join(f" {size} " for size in sorted(set(dealt), reverse=True))
    assert f"={said}sample" in plan.lines()[2]
    assert plan.optimizer_steps_per_iteration == minis * epochs
    assert plan.micro_batch_size is not None
    assert plan.micro_batches_per_rank is not None
    held = plan.micro_batches_per_rank * plan.micro_batch_size
    assert 0 <= held - plan.samples_per_rank_per_mini_batch < plan.micro_batch_size
    if micro is None:
        assert held == plan.samples_per_rank_per_mini_batch


@pytest.mark.row("F66")
def test_the_words() -> None:
    assert BatchPlan.of(config(64, 8, 32, 3, 20, 2)).lines() == [
        "train batch    64 prompts x 8 samples each = 512 samples: what one iteration generates and scores",
        "mini batch     32 prompts x 8 = 256 samples, over all ranks: what one optimizer step learns from; 2 in a "
        "train batch",
        "per rank       256 samples / 3 ranks = 86 or 85 samples of each mini batch",
        "micro batch    20 samples on a rank: what one forward and backward pass holds; it sets memory, not the "
        "result; 5 passes for each rank's share, the last of 6 or 5 samples",
        "optimizer      2 mini batches x 2 epochs = 4 steps an iteration; after the first, samples are off-policy",
    ]


def test_filled_by_tokens() -> None:
    tokens = ["actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=900"]
    plan = BatchPlan.of(resolve(load(SMALL, tokens), Machine("cpu", 0, 2)))
    assert (plan.micro_batch_size, plan.micro_batches_per_rank, plan.max_tokens_per_micro_batch) == (None, None, 900)
    assert "as many samples as fit in 900 tokens" in plan.lines()[3]


def test_the_critic_has_its_own() -> None:
    found = resolve(load(SMALL, ["critic.ppo_mini_batch_size=16", "critic.ppo_epochs=3"]), Machine("cpu", 0, 2))
    assert BatchPlan.of_critic(found).optimizer_steps_per_iteration == 12
    assert BatchPlan.of(found).optimizer_steps_per_iteration == 2


def test_an_unresolved_config_has_no_plan() -> None:
    with pytest.raises(ValueError, match="not been resolved"):
        BatchPlan.of(BASE)
