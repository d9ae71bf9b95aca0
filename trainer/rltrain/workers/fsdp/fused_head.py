"""Log-probabilities and entropies from hidden states by blocks: the logits of a micro batch never exist whole.

The softmax is put together over blocks of the vocabulary with a running maximum (Milakov and Gimelshein 2018,
arXiv:1805.02867). Backward makes each block of logits once more, and adds its share to the gradients of the hidden
states and of the head's weight.

The head is called where the model calls it, with another `forward`: FSDP gathers its weight and reduces its gradient as
ever, and a tied weight stays tied.
"""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BLOCK_ELEMENTS = 1 << 25
"""Logits that exist at a time: 128 MiB in float32, and about four times that with what is made of them. A micro batch
with fewer is read whole: there is no memory to save, and nothing to compute twice."""
BLOCK_TOKENS = 8192
"""Of a block at most: it has as much of the vocabulary as fits."""

EntropyUse = Literal["none", "read", "learnt"]
"""It is not computed; it is read, without a gradient; it takes part in the loss."""

Whole = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Logits [N, V] -> log p of the targets and the entropy, [N] each."""


@dataclass(frozen=True)
class FusedHead:
    """The LM head of a model, whose logits the model hands on as they are or times `scale`. Made by `proven`."""

    module: nn.Linear
    scale: float = 1.0
    block: int = BLOCK_ELEMENTS

    @contextmanager
    def reading(self, targets: Tensor, temperature: float, entropy: EntropyUse, whole: Whole) -> Generator[None]:
        """While this lasts the model gives no logits, but [..., 1 or 2]: log p of TARGETS, and the entropy if used.

        Args:
            targets: [N], one for each hidden state that reaches the head.
            temperature: divides the logits, in float32.
            entropy: its use.
            whole: reads few logits.
        """

        def forward(hidden: Tensor) -> Tensor:
            flat, vocabulary = hidden.flatten(0, -2), len(self.module.weight)
            if len(flat) != len(targets):
                raise ValueError(f"the head is given {len(flat)} positions, not {len(targets)}")
            if len(flat) * vocabulary <= self.block:
                logits = F.linear(flat, self.module.weight, self.module.bias)
                found, spread = whole(logits if self.scale == 1 else logits * self.scale)
            else:
                blocks = Blocks(self.scale, temperature, entropy != "none", self.block)
                found, spread = fused_stats(flat, self.module.weight, self.module.bias, targets, blocks)
            given = [found] if spread is None else [found, spread if entropy == "learnt" else spread.detach()]
            stacked = torch.stack(given, dim=-1).view(*hidden.shape[:-1], len(given))
            return stacked if self.scale == 1 else stacked / self.scale

        with _forward(self.module, forward):
            yield


@contextmanager
def probing(head: nn.Linear, values: Tensor) -> Generator[None]:
    """HEAD gives VALUES, [N, K], in place of its logits: shows what the model makes of them."""

    def forward(hidden: Tensor) -> Tensor:
        return values.view(*hidden.shape[:-1], values.shape[-1])

    with _forward(head, forward):
        yield


@contextmanager
def _forward(head: nn.Linear, forward: Callable[[Tensor], Tensor]) -> Generator[None]:
    module: Any = head
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


@dataclass(frozen=True)
class Blocks:
    """How logits are read: times `scale`, divided by `temperature`, `elements` at a time."""

    scale: float
    temperature: float
    entropy: bool
    elements: int = BLOCK_ELEMENTS

    def of(self, tokens: int, vocabulary: int) -> Iterator[tuple[slice, list[slice]]]:
        """Blocks of the vocabulary, and for each of them those of the tokens."""
        rows = max(min(tokens, BLOCK_TOKENS, self.elements // 2), 1)
        words = max(self.elements // rows, 1)
        pieces = [slice(start, min(start + rows, tokens)) for start in range(0, tokens, rows)]
        for start in range(0, vocabulary, words):
            yield slice(start, min(start + words, vocabulary)), pieces

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the softmax is taken of, float32 [n, v]. The product is rounded as the model rounds it."""
        found = F.linear(hidden, weight, bias).float()
        if self.scale != 1:
            found = found * self.scale
        return found if self.temperature == 1 else found / self.temperature


def fused_stats(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, blocks: Blocks
) -> tuple[Tensor, Tensor | None]:
    """log p(target), and the entropy in nats if asked for, of softmax(scale * (hidden weight^T + bias) / temperature).

    Args:
        hidden: [N, H].
        weight: [V, H].
        bias: [V] or None.
        targets: int64 [N].
        blocks: how.

    Returns:
        float32 [N], differentiable by hidden, weight and bias; the entropy likewise, or None.
    """
    found: tuple[Tensor, Tensor | None] = _Stats.apply(hidden, weight, bias, targets, blocks)  # pyright: ignore[reportAssignmentType]
    return found


class _Stats(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, blocks: Blocks
    ) -> tuple[Tensor, Tensor | None]:
        """See `fused_stats`."""
        mass, moment, chosen = torch.zeros(3, len(hidden), dtype=torch.float32, device=hidden.device)
        # Not -inf, which times 0 is no number.
        peak = torch.full_like(mass, torch.finfo(torch.float32).min)
        for words, pieces in blocks.of(len(hidden), len(weight)):
            piece_bias = None if bias is None else bias[words]
            for rows in pieces:
                logits = blocks.logits(hidden[rows], weight[words], piece_bias)
                place, inside = _places(targets[rows], words)
                picked = logits.gather(1, place[:, None])[:, 0]
                chosen[rows] = torch.where(inside, picked, chosen[rows])
                folded = _fold(logits, peak[rows], mass[rows], moment[rows], blocks.entropy)
                peak[rows], mass[rows], moment[rows] = folded
        spread = mass.log()
        entropy = spread - moment / mass if blocks.entropy else None
        ctx.save_for_backward(hidden, weight, bias, targets, peak + spread, entropy)
        ctx.blocks = blocks
        ctx.set_materialize_grads(False)
        return chosen - peak - spread, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of hidden, weight and bias."""
        hidden, weight, bias, targets, normaliser, entropy = ctx.saved_tensors
        blocks: Blocks = ctx.blocks
        factor = blocks.scale / blocks.temperature
        by_hidden, by_weight, by_bias = ctx.needs_input_grad[:3]
        # Sums over blocks in float32, each block's share rounded as the model's own gradients are.
        of_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device) if by_hidden else None
        of_weight = torch.empty_like(weight) if by_weight else None
        of_bias = torch.empty_like(bias) if by_bias else None
        for words, pieces in blocks.of(len(hidden), len(weight)):
            part, sums = None, None
            for rows in pieces:
                logits = blocks.logits(hidden[rows], weight[words], None if bias is None else bias[words])
                logits.sub_(normaliser[rows, None])
                given = [None if grad is None else grad[rows] for grad in grads]
                slopes = _slopes(logits, given, None if entropy is None else entropy[rows])
                if given[0] is not None:
                    place, inside = _places(targets[rows], words)
                    slopes.scatter_add_(1, place[:, None], torch.where(inside, given[0], 0.0)[:, None])
                slopes = (slopes if factor == 1 else slopes.mul_(factor)).to(hidden.dtype)
                if of_hidden is not None:
                    of_hidden[rows] += slopes @ weight[words]
                if of_weight is not None:
                    part = _add(part, slopes.t() @ hidden[rows])
                if of_bias is not None:
                    sums = _add(sums, slopes.sum(0))
            if of_weight is not None and part is not None:
                of_weight[words] = part
            if of_bias is not None and sums is not None:
                of_bias[words] = sums
        return None if of_hidden is None else of_hidden.to(hidden.dtype), of_weight, of_bias, None, None


def _places(targets: Tensor, words: slice) -> tuple[Tensor, Tensor]:
    """Where in the block WORDS of the vocabulary TARGETS are, and which of them are there at all. [n] each."""
    inside = (targets >= words.start) & (targets < words.stop)
    return (targets - words.start).clamp(0, words.stop - words.start - 1), inside


def _fold(logits: Tensor, peak: Tensor, mass: Tensor, moment: Tensor, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Take LOGITS, [n, v], into what is known of the rows, [n] each; LOGITS are overwritten.

    With z the logits so far: `peak` = max z, `mass` = sum exp(z - peak), `moment` = sum exp(z - peak) (z - peak).
    Relative to the peak, a distribution on one token keeps its small entropy.
    """
    top = torch.maximum(peak, logits.amax(dim=-1))
    shift = peak - top
    fade = shift.exp()
    below = logits.sub_(top[:, None])
    share = below.exp()
    added = share.sum(dim=-1)
    if entropy:
        moment = fade * (moment + shift * mass) + share.mul_(below).sum(dim=-1)
    return top, fade * mass + added, moment


def _slopes(log_p: Tensor, grads: list[Tensor | None], entropy: Tensor | None) -> Tensor:
    """Gradient by the logits, [n, v], less what only the target gets: -p (g + g_entropy (log p + entropy)).

    LOG_P is overwritten. GRADS: by log p of the target and by the ENTROPY, [n] each.
    """
    by_log_p, by_entropy = grads
    p = log_p.exp()
    if by_entropy is None or entropy is None:
        return p.mul_(0.0 if by_log_p is None else -by_log_p[:, None])
    weights = log_p.add_(entropy[:, None]).mul_(by_entropy[:, None])
    if by_log_p is not None:
        weights.add_(by_log_p[:, None])
    return p.mul_(weights).neg_()


def _add(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total.float().add_(part)
