"""The actor's log-probabilities read otherwise than a run reads them: shows what a difference comes from."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rltrain.workers.fsdp.forward import CHUNK_TOKENS, Policy, place, response_outputs
from rltrain.workers.fsdp.inference import infer
from rltrain.workers.fsdp.micro import MicroSize, Shard
from rltrain.workers.fsdp.sharded_model import ShardedModel


@dataclass(frozen=True)
class Reading:
    """How to read; what is left as it is, is as in a run."""

    temperatures: tuple[float, ...] = ()
    """Each gives log-probabilities of its own, by code that no run uses: targets, LM head and log-softmax, in float32.
    Empty: by the run's code."""
    temperature: float | None = None
    """For the run's code; None: the run's."""
    alone: bool = False
    """Each row in a micro batch of its own."""
    padded: bool = False
    """Rows are padded, not packed."""
    attention: str | None = None
    """An attention of transformers, by name. Only of padded rows."""


def reread(sharded: ShardedModel, policy: Policy, size: MicroSize, shard: Shard, reading: Reading) -> dict[str, Tensor]:
    """Read SHARD's response tokens as READING says (collective).

    Args:
        role: whose model reads.
        policy: how a run reads it.
        size: of a run's micro batches.
        shard: this rank's rows; may be none.
        reading: what is changed.

    Returns:
        `log_probs_0`, `log_probs_1`, … for each of `reading.temperatures` (one without any): float32 [B, R].
    """
    changed = replace(
        policy,
        packed=policy.packed and not reading.padded,
        temperature=policy.temperature if reading.temperature is None else reading.temperature,
    )
    size = MicroSize(1, None) if reading.alone else size
    names = tuple(f"log_probs_{number}" for number in range(max(1, len(reading.temperatures))))

    def read(rows: Shard) -> dict[str, Tensor]:
        if not reading.temperatures:
            return {names[0]: changed(rows).log_probs}
        return dict(zip(names, _exact(changed, rows, reading.temperatures), strict=True))

    with _attention(sharded.model, reading.attention), _float32_head(sharded.model, bool(reading.temperatures)):
        return infer(sharded, shard, size, read, names)


def _exact(policy: Policy, rows: Shard, temperatures: tuple[float, ...]) -> list[Tensor]:
    """log p of ROWS' response tokens at each of TEMPERATURES: float32 [B, R]."""
    logits, where = response_outputs(policy.model, rows, policy.packed)
    targets = rows["input_ids"][:, -where.shape[1] :]
    targets = targets[where] if policy.packed else targets.flatten()
    found: list[list[Tensor]] = [[] for _ in temperatures]
    for piece, wanted in zip(logits.split(CHUNK_TOKENS), targets.split(CHUNK_TOKENS), strict=True):
        values = piece.float()
        chosen = values.gather(-1, wanted[:, None]).squeeze(-1)
        for number, temperature in enumerate(temperatures):
            found[number].append(chosen / temperature - (values / temperature).logsumexp(dim=-1))
    return [place(torch.cat(parts), where) for parts in found]


@contextmanager
def _attention(model: nn.Module, name: str | None) -> Generator[None]:
    """MODEL with the attention NAME; None: as it is."""
    if name is None:
        yield
        return
    changed: Any = model
    before: str = changed.config._attn_implementation
    changed.set_attn_implementation(name)
    try:
        yield
    finally:
        changed.set_attn_implementation(before)


@contextmanager
def _float32_head(model: nn.Module, wanted: bool) -> Generator[None]:
    """MODEL with an LM head that multiplies in float32, whatever mixed precision says."""
    head: Any = model.get_output_embeddings() if wanted else None  # pyright: ignore[reportCallIssue]
    if head is None:
        yield
        return

    def forward(hidden: Tensor) -> Tensor:
        bias = None if head.bias is None else head.bias.float()
        return F.linear(hidden.float(), head.weight.float(), bias)

    head.forward = forward
    try:
        yield
    finally:
        del head.forward
