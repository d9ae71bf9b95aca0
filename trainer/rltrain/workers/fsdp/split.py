"""Cut a batch into mini batches and deal these to ranks. Pure; runs in the controller.

Which rows make a mini batch depends on the order of the batch (or on a seed) alone, not on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rltrain.algos.aggregation import AggNormalizer
from rltrain.config.schema import RunConfig
from rltrain.core.tensors import ints
from rltrain.workers.fsdp.micro import MicroSize, MiniBatch, cut, row_lengths
from rltrain.workers.fsdp.rank import derive_seed

_COMMON = ("input_ids", "attention_mask", "response_mask")
ACTOR_FIELDS = (*_COMMON, "advantages")
ACTOR_OPTIONAL_FIELDS = ("old_log_probs", "ref_log_probs", "rollout_is_weights")
"""Taken along where they exist. Without the first the update reads them."""
CRITIC_FIELDS = (*_COMMON, "values", "returns")


@dataclass(frozen=True)
class SplitSettings:
    """How a role's updates are cut."""

    mini_rows: int
    """Samples in one optimizer step, over all ranks."""
    num_epochs: int
    size: MicroSize
    balance: bool
    """Deal rows so that ranks get about as many tokens each."""
    shuffle_seed: int | None
    """None: in the order of the batch."""

    @classmethod
    def of_actor(cls, config: RunConfig, step: int) -> SplitSettings:
        """The actor's, at STEP of the run (it seeds the shuffle)."""
        section = config.actor_rollout_ref
        seed = derive_seed(config.trainer.seed, "actor shuffle", step) if section.actor.shuffle else None
        rows = section.actor.ppo_mini_batch_size * section.rollout.n
        return cls(rows, section.actor.ppo_epochs, MicroSize.of(section.actor), config.trainer.balance_batch, seed)

    @classmethod
    def of_critic(cls, config: RunConfig, step: int) -> SplitSettings:
        """The critic's, at STEP of the run."""
        section = config.critic
        assert section.ppo_mini_batch_size is not None
        assert section.ppo_epochs is not None
        seed = derive_seed(config.trainer.seed, "critic shuffle", step) if section.shuffle else None
        rows = section.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
        return cls(rows, section.ppo_epochs, MicroSize.of(section), config.trainer.balance_batch, seed)


@dataclass(frozen=True)
class MiniPlan:
    """One optimizer step: which rows of the batch each rank gets, and how many passes every rank makes."""

    ranks: tuple[tuple[int, ...], ...]
    micro_batches: int

    @property
    def rows(self) -> list[int]:
        """All rows of the mini batch, in the order of the batch."""
        return sorted(row for rank in self.ranks for row in rank)


def split(lengths: Sequence[int], settings: SplitSettings, data_ranks: int) -> list[MiniPlan]:
    """The optimizer steps of one update: all epochs, in order.

    Args:
        lengths: tokens of each row of the batch.
        settings: of the role.
        data_ranks: ranks that have rows of their own.
    """
    plans: list[MiniPlan] = []
    for epoch in range(settings.num_epochs):
        order = _order(len(lengths), settings.shuffle_seed, epoch)
        for start in range(0, len(order), settings.mini_rows):
            rows = order[start : start + settings.mini_rows]
            plans.append(_plan(rows, lengths, settings, data_ranks))
    return plans


def _order(count: int, seed: int | None, epoch: int) -> list[int]:
    if seed is None:
        return list(range(count))
    generator = torch.Generator().manual_seed(derive_seed(seed, "epoch", epoch))
    return ints(torch.randperm(count, generator=generator))


def _plan(rows: Sequence[int], lengths: Sequence[int], settings: SplitSettings, data_ranks: int) -> MiniPlan:
    dealt = deal([lengths[row] for row in rows], data_ranks, settings.balance)
    ranks = tuple(tuple(rows[place] for place in places) for places in dealt)
    passes = max(len(cut([lengths[row] for row in rank], settings.size)) for rank in ranks)
    return MiniPlan(ranks, passes)


def deal(lengths: Sequence[int], data_ranks: int, balance: bool) -> list[list[int]]:
    """Rows for each rank, numbers of rows differing by at most 1 (some ranks get none where rows are few).

    Balanced: the longest row left goes to the rank with the fewest tokens that still has room. Otherwise neighbours
    go together.
    """
    count, more = divmod(len(lengths), data_ranks)
    room = [count + (rank < more) for rank in range(data_ranks)]
    if not balance:
        starts = [sum(room[:rank]) for rank in range(data_ranks)]
        return [list(range(start, start + size)) for start, size in zip(starts, room, strict=True)]
    ranks: list[list[int]] = [[] for _ in range(data_ranks)]
    loads = [0] * data_ranks
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        rank = min((r for r in range(data_ranks) if len(ranks[r]) < room[r]), key=lambda r: (loads[r], r))
        ranks[rank].append(row)
        loads[rank] += lengths[row]
    return [sorted(rank) for rank in ranks]


def mini_batches(
    tensors: Mapping[str, Tensor], plans: Sequence[MiniPlan], data_ranks: int, fields: Iterable[str], scale: float
) -> list[list[MiniBatch]]:
    """PLANS with their data: for each rank, its share of each optimizer step.

    Equal plans (epochs without shuffle) give the same object, which crosses to a worker once.

    Args:
        tensors: the whole batch, such as `Batch.bare()`.
        plans: from `split`.
        data_ranks: ranks that have rows of their own.
        fields: names to take along.
        scale: `loss_scale_factor`.
    """
    wanted = {name: tensors[name] for name in fields}
    made: dict[MiniPlan, list[MiniBatch]] = {}
    for plan in plans:
        if plan not in made:
            normalizer = AggNormalizer.of(wanted["response_mask"][torch.tensor(plan.rows)], scale)
            made[plan] = [MiniBatch(_rows(wanted, rank), normalizer, plan.micro_batches, rank) for rank in plan.ranks]
    return [[made[plan][rank] for plan in plans] for rank in range(data_ranks)]


def _rows(tensors: Mapping[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
    index = torch.tensor(list(rows), dtype=torch.int64)
    return {name: tensor[index] for name, tensor in tensors.items()}


def actor_minis(tensors: Mapping[str, Tensor], config: RunConfig, step: int, data_ranks: int) -> list[list[MiniBatch]]:
    """For each rank, the mini batches of the actor's update at STEP. CONFIG is resolved."""
    settings = SplitSettings.of_actor(config, step)
    fields = (*ACTOR_FIELDS, *(name for name in ACTOR_OPTIONAL_FIELDS if name in tensors))
    plans = split(row_lengths(tensors), settings, data_ranks)
    return mini_batches(tensors, plans, data_ranks, fields, _scale(config))


def critic_minis(tensors: Mapping[str, Tensor], config: RunConfig, step: int, data_ranks: int) -> list[list[MiniBatch]]:
    """For each rank, the mini batches of the critic's update at STEP. CONFIG is resolved."""
    settings = SplitSettings.of_critic(config, step)
    plans = split(row_lengths(tensors), settings, data_ranks)
    return mini_batches(tensors, plans, data_ranks, CRITIC_FIELDS, _scale(config))


def _scale(config: RunConfig) -> float:
    scale = config.actor_rollout_ref.actor.loss_scale_factor
    assert scale is not None, "the config is not resolved"
    return scale


def shards(
    tensors: Mapping[str, Tensor], config: RunConfig, data_ranks: int
) -> list[tuple[list[int], dict[str, Tensor]]]:
    """The whole batch dealt to ranks, for passes without update: (rows, their fields) for each rank."""
    dealt = deal(row_lengths(tensors), data_ranks, config.trainer.balance_batch)
    return [(rows, _rows(tensors, rows)) for rows in dealt]
