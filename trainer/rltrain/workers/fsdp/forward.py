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

from rltrain.workers.fsdp.micro import Shard

CHUNK_TOKENS = 1024
"""Tokens whose float32 distribution over the vocabulary exists at a time."""


@dataclass(frozen=True)
class TokenStats:
    """Of the sampled tokens, under logits / temperature."""

    log_probs: Tensor
    """float32 [B, R], 0 where there is no token."""
    entropys: Tensor
    """float32 [B, R], nats, 0 where there is no token."""


@dataclass(frozen=True)
class Policy:
    """How to read a causal language model as a policy."""

    model: nn.Module
    temperature: float
    packed: bool
    chunked: bool
    compiled: bool = False

    def __call__(self, rows: Shard, entropy_grad: bool = False) -> TokenStats:
        """Log-probability and entropy of each response token.

        Args:
            rows: a micro batch on the model's device.
            entropy_grad: entropy takes part in the loss.
        """
        outputs, where = response_outputs(self.model, rows, self.packed)
        targets = response_targets(rows, where, self.packed)
        log_probs, entropys = self._stats(outputs, targets, entropy_grad)
        return TokenStats(place(log_probs, where), place(entropys, where))

    def _stats(self, logits: Tensor, targets: Tensor, entropy_grad: bool) -> tuple[Tensor, Tensor]:
        """[N, V], [N] -> [N], [N]."""
        function: Callable[..., tuple[Tensor, Tensor]] = token_stats
        if self.compiled:
            function = torch.compile(token_stats, dynamic=True)
        if not self.chunked:
            return function(logits, targets, self.temperature, entropy_grad)
        pairs: list[tuple[Tensor, Tensor]] = []
        for piece, wanted in zip(logits.split(CHUNK_TOKENS), targets.split(CHUNK_TOKENS), strict=True):
            # Checkpointed: the float32 copies are made again in backward, one chunk at a time.
            pairs.append(checkpoint(function, piece, wanted, self.temperature, entropy_grad, use_reentrant=False))
        return torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])


def token_stats(logits: Tensor, targets: Tensor, temperature: float, entropy_grad: bool) -> tuple[Tensor, Tensor]:
    """log p(target) and the entropy of softmax(logits / temperature), in float32. [N, V], [N] -> [N], [N]."""
    log_p = F.log_softmax(logits.float() / temperature, dim=-1)
    chosen = log_p.gather(-1, targets[:, None]).squeeze(-1)
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
    return chosen, entropy


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
    ids, real = rows["input_ids"], rows["attention_mask"].bool()
    num_response = rows["response_mask"].shape[1]
    num_prompt = ids.shape[1] - num_response
    where = real[:, num_prompt:]
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
