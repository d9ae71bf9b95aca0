"""Forward passes: what a model says at each response token, from padded or packed rows."""

# Torch and transformers are typed in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rltrain.workers.fsdp.fused_head import EntropyUse, FusedHead
from rltrain.workers.fsdp.micro import Shard

CHUNK_TOKENS = 1024
"""Tokens whose float32 distribution over the vocabulary exists at a time."""


@dataclass(frozen=True)
class TokenStats:
    """Of the sampled tokens, under logits / temperature."""

    log_probs: Tensor
    """float32 [B, R], 0 where there is no token."""
    entropys: Tensor | None
    """float32 [B, R], nats, 0 where there is no token; None: not asked for."""


@dataclass(frozen=True)
class Policy:
    """How to read a causal language model as a policy."""

    model: nn.Module
    temperature: float
    packed: bool
    chunked: bool
    compiled: bool = False
    head: FusedHead | None = None
    """None: the logits exist whole."""

    def __call__(self, rows: Shard, entropy: EntropyUse = "read") -> TokenStats:
        """Log-probability and entropy of each response token.

        Args:
            rows: a micro batch on the model's device.
            entropy: its use.
        """
        targets = response_targets(rows, response_places(rows), self.packed)

        def whole(logits: Tensor) -> tuple[Tensor, Tensor | None]:
            return self._stats(logits, targets, entropy)

        if self.head is None:
            outputs, where = response_outputs(self.model, rows, self.packed)
            log_probs, entropys = whole(outputs)
        else:
            with self.head.reading(targets, self.temperature, entropy, whole):
                outputs, where = response_outputs(self.model, rows, self.packed)
            log_probs, entropys = outputs[..., 0], outputs[..., 1] if outputs.shape[-1] > 1 else None
        return TokenStats(place(log_probs, where), None if entropys is None else place(entropys, where))

    def _stats(self, logits: Tensor, targets: Tensor, entropy: EntropyUse) -> tuple[Tensor, Tensor | None]:
        """[N, V], [N] -> [N], and [N] or None."""
        function: Callable[..., tuple[Tensor, Tensor | None]] = token_stats
        if self.compiled:
            function = torch.compile(token_stats, dynamic=True)
        if not self.chunked:
            return function(logits, targets, self.temperature, entropy)
        pairs: list[tuple[Tensor, Tensor | None]] = []
        for piece, wanted in zip(logits.split(CHUNK_TOKENS), targets.split(CHUNK_TOKENS), strict=True):
            # Checkpointed: the float32 copies are made again in backward, one chunk at a time.
            pairs.append(checkpoint(function, piece, wanted, self.temperature, entropy, use_reentrant=False))
        entropys = [pair[1] for pair in pairs if pair[1] is not None]
        return torch.cat([pair[0] for pair in pairs]), torch.cat(entropys) if entropys else None


def token_stats(
    logits: Tensor, targets: Tensor, temperature: float, entropy: EntropyUse
) -> tuple[Tensor, Tensor | None]:
    """log p(target) and the entropy of softmax(logits / temperature), in float32. [N, V], [N] -> [N], [N]."""
    scores = logits.float()
    log_p = F.log_softmax(scores if temperature == 1 else scores / temperature, dim=-1)
    chosen = log_p.gather(-1, targets[:, None]).squeeze(-1)
    if entropy == "none":
        return chosen, None
    with torch.set_grad_enabled(entropy == "learnt" and torch.is_grad_enabled()):
        return chosen, -(log_p.exp() * log_p).sum(dim=-1)


def values(model: nn.Module, rows: Shard, packed: bool) -> Tensor:
    """The critic's value before each response token: float32 [B, R], 0 where there is no token."""
    outputs, where = response_outputs(model, rows, packed)
    return place(outputs, where)


def response_outputs(model: nn.Module, rows: Shard, packed: bool) -> tuple[Tensor, Tensor]:
    """Outputs at the positions that predict response tokens, and where those tokens stand.

    Only these positions reach the LM head (or value head): `logits_to_keep`.

    Returns:
        [N, ...] (packed: N response tokens, row after row; padded: N = B * R), and bool [B, R].
    """
    ids, real, where = rows["input_ids"], rows["attention_mask"].bool(), response_places(rows)
    num_prompt = ids.shape[1] - where.shape[1]
    if not packed:
        keep = torch.arange(num_prompt - 1, ids.shape[1] - 1, device=ids.device)
        out = _call(model, keep, input_ids=ids, attention_mask=real, position_ids=rows["position_ids"])
        return out.flatten(0, 1), where
    index = real.flatten().cumsum(0).view_as(real) - 1
    lengths = real.sum(dim=1)
    borders = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    longest = int(lengths.max())
    keep = index[:, num_prompt:][where] - 1
    out = _call(
        model,
        keep,
        input_ids=ids[real][None],
        position_ids=rows["position_ids"][real][None],
        cu_seq_lens_q=borders,
        cu_seq_lens_k=borders,
        max_length_q=longest,
        max_length_k=longest,
    )
    return out[0], where


def response_places(rows: Shard) -> Tensor:
    """Where there is a response token: bool [B, R]."""
    return rows["attention_mask"][:, -rows["response_mask"].shape[1] :].bool()


def _call(model: nn.Module, keep: Tensor, **inputs: Tensor | int) -> Tensor:
    out = model(**inputs, logits_to_keep=keep, use_cache=False)
    return out if isinstance(out, Tensor) else out.logits


def response_targets(rows: Shard, where: Tensor, packed: bool) -> Tensor:
    """The response tokens, [N], in the order of `response_outputs`."""
    targets = rows["input_ids"][:, -where.shape[1] :]
    return targets[where] if packed else targets.flatten()


def place(flat: Tensor, where: Tensor) -> Tensor:
    """FLAT, [N] of `response_outputs`, as [B, R] with 0 where there is no token."""
    if flat.numel() == where.numel():
        return torch.where(where, flat.view(where.shape), 0.0)
    return torch.zeros(where.shape, dtype=flat.dtype, device=flat.device).masked_scatter(where, flat)
