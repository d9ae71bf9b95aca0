"""Mini batches, ranks and micro batches: every sample exactly once, and the sums of the undivided batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rltrain.algos.aggregation import aggregate
from rltrain.workers.fsdp.micro import MicroSize, cut
from rltrain.workers.fsdp.split import SplitSettings, actor_minis, critic_minis, deal, mini_batches, shards, split
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.models import random_batch

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40)
SIZES = st.one_of(
    st.builds(MicroSize, st.integers(1, 9), st.none()), st.builds(MicroSize, st.none(), st.integers(20, 120))
)
SETTINGS = st.builds(
    SplitSettings,
    mini_rows=st.integers(1, 17),
    num_epochs=st.integers(1, 3),
    size=SIZES,
    balance=st.booleans(),
    shuffle_seed=st.one_of(st.none(), st.integers(0, 2**31)),
)


@given(LENGTHS, SETTINGS, st.integers(1, 6))
def test_each_epoch_holds_every_row_once(lengths: list[int], settings: SplitSettings, world_size: int) -> None:
    plans = split(lengths, settings, world_size)
    per_epoch = -(-len(lengths) // settings.mini_rows)
    assert len(plans) == per_epoch * settings.num_epochs
    for epoch in range(settings.num_epochs):
        rows = [row for plan in plans[epoch * per_epoch : (epoch + 1) * per_epoch] for row in plan.rows]
        assert sorted(rows) == list(range(len(lengths)))


@given(LENGTHS, SETTINGS, st.integers(2, 6))
def test_members_of_a_mini_batch_do_not_depend_on_the_ranks(
    lengths: list[int], settings: SplitSettings, world_size: int
) -> None:
    one, many = split(lengths, settings, 1), split(lengths, settings, world_size)
    assert [plan.rows for plan in one] == [plan.rows for plan in many]


@given(LENGTHS, SETTINGS, st.integers(1, 6))
def test_every_rank_can_make_the_agreed_passes(lengths: list[int], settings: SplitSettings, world_size: int) -> None:
    for plan in split(lengths, settings, world_size):
        passes = [len(cut([lengths[row] for row in rank], settings.size)) for rank in plan.ranks]
        assert max(passes) == plan.micro_batches
        counts = [len(rank) for rank in plan.ranks]
        assert max(counts) - min(counts) <= 1


@given(LENGTHS, SIZES)
def test_a_cut_holds_every_row_once_within_the_limit(lengths: list[int], size: MicroSize) -> None:
    groups = cut(lengths, size)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        assert group == sorted(group)
        if size.num_rows is not None:
            assert len(group) <= size.num_rows
        else:
            assert size.num_tokens is not None
            assert len(group) == 1 or sum(lengths[row] for row in group) <= size.num_tokens


def test_a_cut_by_tokens_makes_few_passes() -> None:
    assert cut([6, 5, 4, 3, 2], MicroSize(None, 10)) == [[0, 2], [1, 3, 4]]


def test_balanced_ranks_have_about_as_many_tokens() -> None:
    lengths = [50, 48, 46, 44, 2, 2, 2, 2]
    loads = [sum(lengths[row] for row in rank) for rank in deal(lengths, 2, balance=True)]
    assert max(loads) - min(loads) <= 4
    assert deal(lengths, 2, balance=False) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_shuffles_differ_by_step_and_by_epoch_and_repeat(tmp_path: Path) -> None:
    keys = {"shuffle": True, "ppo_epochs": 2}
    config = make_config(tmp_path, actor=keys, critic=keys)
    lengths = list(range(1, 17))

    def rows(step: int) -> list[list[int]]:
        return [plan.rows for plan in split(lengths, SplitSettings.of_actor(config, step), 1)]

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)
    assert rows(1)[:2] != rows(1)[2:]
    assert rows(1) != [plan.rows for plan in split(lengths, SplitSettings.of_critic(config, 1), 1)]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_the_shares_of_all_ranks_sum_to_the_undivided_loss(mode: str) -> None:
    batch = random_batch(13, seed=8)
    settings = SplitSettings(5, 1, MicroSize(None, 40), balance=True, shuffle_seed=1)
    plans = split(batch["attention_mask"].sum(1).tolist(), settings, 3)
    ranks = mini_batches(batch, plans, 3, ("response_mask", "advantages", "attention_mask"), 10.0)
    for number, plan in enumerate(plans):
        minis = [rank[number] for rank in ranks]
        shares = [
            aggregate(mini.shard["advantages"].double(), mini.shard["response_mask"], mode, mini.normalizer)
            for mini in minis
        ]
        terms, mask = batch["advantages"][plan.rows].double(), batch["response_mask"][plan.rows]
        whole = {
            "token-mean": terms.sum() / mask.sum(),
            "seq-mean-token-sum": terms.sum() / len(plan.rows),
            "seq-mean-token-mean": (terms.sum(1) / mask.sum(1)).mean(),
            "seq-mean-token-sum-norm": terms.sum() / (10.0 * len(plan.rows)),
        }[mode]
        torch.testing.assert_close(sum(shares), whole)


def test_a_role_gets_its_fields_and_epochs_share_memory(tmp_path: Path) -> None:
    batch = random_batch(16, seed=9)
    for name in ("old_log_probs", "values", "ref_log_probs"):
        batch[name] = torch.zeros(batch["response_mask"].shape)
    config = make_config(tmp_path, actor={"ppo_epochs": 2})
    minis = actor_minis(batch, config, 1, 2)
    assert len(minis) == 2
    assert [len(rank) for rank in minis] == [4, 4]
    assert minis[0][0] is minis[0][2]
    assert "ref_log_probs" in minis[0][0].shard
    assert "values" not in minis[0][0].shard
    assert "returns" in critic_minis(batch, config, 1, 2)[1][0].shard


def test_shards_hold_the_whole_batch(tmp_path: Path) -> None:
    batch = random_batch(7, seed=10)
    dealt = shards(batch, make_config(tmp_path), 3)
    assert sorted(row for rows, _ in dealt for row in rows) == list(range(7))
    for rows, fields in dealt:
        torch.testing.assert_close(fields["input_ids"], batch["input_ids"][rows])
