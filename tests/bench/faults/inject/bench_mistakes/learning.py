"""Mistakes in how a batch is dealt to the ranks and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench_mistakes.registry import mistake, wrap


@mistake("rltrain.controller.roles")
def ranks_get_the_same(module: Any) -> None:
    """The sampler does not know the rank: all of them get the first one's rows."""

    def minis(real: Any, tensors: Any, config: Any, step: int, world_size: int) -> Any:
        dealt = real(tensors, config, step, world_size)
        return [dealt[0] for _ in dealt]

    wrap(module, "actor_minis", minis)
    wrap(module, "critic_minis", minis)


@mistake("rltrain.workers.fsdp.split")
def ranks_get_everything(module: Any) -> None:
    """Nobody cuts the batch: each rank learns from all of it."""

    def plan(real: Any, *args: Any) -> Any:
        module.deal = lambda lengths, world_size, balance: [list(range(len(lengths)))] * world_size
        try:
            return real(*args)
        finally:
            module.deal = dealt

    dealt = module.deal
    wrap(module, "_plan", plan)


@mistake("rltrain.controller.roles")
def loss_leaves_out_the_end(module: Any) -> None:
    """The mask of the loss ends one token early: the end token is never learnt."""

    def minis(real: Any, *args: Any) -> Any:
        return [[replace(mini, shard=_masked(mini.shard)) for mini in rank] for rank in real(*args)]

    wrap(module, "actor_minis", minis)


def _masked(shard: Any) -> Any:
    mask = shard["response_mask"].clone()
    last = (mask.sum(-1) - 1).clamp(min=0)
    mask.scatter_(1, last[:, None], False)
    return {**shard, "response_mask": mask}
