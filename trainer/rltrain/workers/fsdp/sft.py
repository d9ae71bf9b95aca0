"""Supervised training of the actor: next-token loss on given tokens, as a warm-up or as a training of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rltrain.algos.aggregation import AggNormalizer, aggregate
from rltrain.config.schema import RunConfig
from rltrain.workers.fsdp.forward import Policy
from rltrain.workers.fsdp.inference import infer
from rltrain.workers.fsdp.metrics import largest, total
from rltrain.workers.fsdp.micro import MicroSize, MiniBatch, Shard, cut, row_lengths
from rltrain.workers.fsdp.optim import Schedule, Stepper
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.updates import run_updates

IGNORED = -100
"""Label of a token that is not learnt, such as those of the prompt."""

WARMUP_STEPS = 10


def sft_stepper(sharded: ShardedModel, config: RunConfig) -> Stepper:
    """An optimizer of its own for the warm-up: `sft_warmup.lr`, reached in the first steps, then constant."""
    actor, warmup = config.actor_rollout_ref.actor, config.sft_warmup
    schedule = Schedule(warmup.lr, min(WARMUP_STEPS, warmup.steps), warmup.steps, "constant", 0.0)
    stepper = Stepper(sharded.model, actor.optim, actor.grad_clip, schedule)
    stepper.num_updates = 1  # each step is an update, and none is spent at a rate of 0
    return stepper


def sft_shard(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, Tensor]:
    """Fields for (input_ids, labels) ROWS: the first token is the prompt, all others the response.

    Labels are beside their own tokens (not shifted), and are the tokens themselves or -100.
    """
    width = max((len(ids) for ids, _ in rows), default=2)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    real = torch.zeros(len(rows), width, dtype=torch.bool)
    learnt = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (tokens, labels) in enumerate(rows):
        ids[row, : len(tokens)] = torch.as_tensor(list(tokens))
        real[row, : len(tokens)] = True
        learnt[row, : len(tokens)] = torch.as_tensor(list(labels)) != IGNORED
    positions = torch.arange(width).expand(len(rows), width) * real
    return {"input_ids": ids, "attention_mask": real, "position_ids": positions, "response_mask": learnt[:, 1:]}


def sft_step(
    sharded: ShardedModel,
    policy: Policy,
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    size: MicroSize,
    data_ranks: int,
) -> dict[str, float]:
    """One optimizer step on the mean cross entropy of all learnt tokens of all ranks (collective). ROWS: this rank's.

    POLICY is read at temperature 1, whatever the rollout's.
    """
    shard = sft_shard(rows)
    num_tokens = int(total(float(shard["response_mask"].sum()), sharded.device))
    num_rows = int(total(float(len(rows)), sharded.device))
    count = int(largest(float(len(cut(row_lengths(shard), size))), sharded.device))

    plain = replace(policy, temperature=1.0)

    def loss_function(micro: Shard, normalizer: AggNormalizer) -> tuple[Tensor, dict[str, Tensor]]:
        terms = -plain(micro, "none").log_probs
        loss = aggregate(terms, micro["response_mask"].bool(), "token-mean", normalizer)
        return loss, {"loss": loss}

    mini = MiniBatch(shard, AggNormalizer(num_tokens, num_rows, 1.0), count)
    sums, (result,) = run_updates(sharded, [mini], size, data_ranks, loss_function)
    return {
        "sft/loss": sums["loss"],
        "sft/grad_norm": result.grad_norm if result.applied else math.nan,
        "sft/lr": result.lr,
        "sft/loss_tokens": float(num_tokens),
        "sft/skipped_steps": float(not result.applied),
    }


def sft_loss(
    sharded: ShardedModel, policy: Policy, rows: Sequence[tuple[Sequence[int], Sequence[int]]], size: MicroSize
) -> dict[str, float]:
    """`loss`, the mean cross entropy of all learnt tokens of all ranks, and `loss_tokens`, their number (collective).

    As in `sft_step`, without learning.
    """
    shard, plain = sft_shard(rows), replace(policy, temperature=1.0)
    found = infer(sharded, shard, size, lambda micro: {"log_probs": plain(micro).log_probs}, ("log_probs",))
    terms = found["log_probs"][shard["response_mask"]]
    num_tokens = total(float(terms.numel()), sharded.device)
    return {
        "loss": -total(float(terms.double().sum()), sharded.device) / max(num_tokens, 1.0),
        "loss_tokens": num_tokens,
    }
