"""Log-probabilities and entropies from hidden states by blocks: the logits of a micro batch never exist whole.

The softmax is put together over blocks of the vocabulary with a running maximum (Milakov and Gimelshein 2018,
arXiv:1805.02867). Backward makes each block of logits once more, and adds its share to the gradients of the hidden
states and of the head's weight.

The head is called where the model calls it, with another `forward`: FSDP gathers its weight and reduces its gradient as
ever, and a tied weight stays tied. On a GPU what is done with a block of logits is one kernel (`compiled`).
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

from rltrain.core.compiled import compiled, compiles

BLOCK_ELEMENTS = 1 << 25
"""Logits that exist at a time: 128 MiB in float32, and about four times that with what is made of them. A micro batch
with fewer is read whole: there is no memory to save, and nothing to compute twice."""
COMPILED_BLOCKS = 4
"""Blocks that are read as one where a kernel makes nothing in float32 of them: as much memory, fewer calls."""
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
                size = self.block * (COMPILED_BLOCKS if compiles(flat) else 1)
                blocks = Blocks(self.scale, temperature, entropy != "none", size)
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
        fold, read = compiled(_fold, hidden), (blocks.scale, blocks.temperature, blocks.entropy)
        for words, pieces in blocks.of(len(hidden), len(weight)):
            piece_bias = None if bias is None else bias[words]
            for rows in pieces:
                logits = F.linear(hidden[rows], weight[words], piece_bias)
                known = (peak[rows], mass[rows], moment[rows], chosen[rows])
                peak[rows], mass[rows], moment[rows], chosen[rows] = fold(
                    logits, targets[rows] - words.start, known, *read
                )
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
        slopes_of = compiled(_slopes, hidden)
        by_hidden, by_weight, by_bias = ctx.needs_input_grad[:3]
        # Sums over blocks in float32, each block's share rounded as the model's own gradients are.
        of_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device) if by_hidden else None
        of_weight = torch.empty_like(weight) if by_weight else None
        of_bias = torch.empty_like(bias) if by_bias else None
        for words, pieces in blocks.of(len(hidden), len(weight)):
            part, sums = None, None
            for rows in pieces:
                logits = F.linear(hidden[rows], weight[words], None if bias is None else bias[words])
                given = [None if grad is None else grad[rows] for grad in grads]
                spread = None if entropy is None else entropy[rows]
                slopes = slopes_of(
                    logits,
                    targets[rows] - words.start,
                    normaliser[rows],
                    spread,
                    given,
                    blocks.scale,
                    blocks.temperature,
                )
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


def _scores(logits: Tensor, scale: float, temperature: float) -> Tensor:
    """What the softmax is taken of, float32 [n, v]. LOGITS are rounded as the model rounds them."""
    found = logits.float()
    if scale != 1:
        found = found * scale
    return found if temperature == 1 else found / temperature


Known = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of the logits z so far, [n] each: max z; sum exp(z - max z); sum exp(z - max z) (z - max z); z of the target."""


def _fold(logits: Tensor, places: Tensor, known: Known, scale: float, temperature: float, entropy: bool) -> Known:
    """Take LOGITS, [n, v], into what is KNOWN of the rows. PLACES: of their targets among these v, or outside.

    Relative to the peak, a distribution on one token keeps its small entropy.
    """
    peak, mass, moment, chosen = known
    scores = _scores(logits, scale, temperature)
    inside = (places >= 0) & (places < logits.shape[1])
    picked = scores.gather(1, places.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    chosen = torch.where(inside, picked, chosen)
    top = torch.maximum(peak, scores.amax(dim=-1))
    shift = peak - top
    fade = shift.exp()
    below = scores - top[:, None]
    share = below.exp()
    if entropy:
        moment = fade * (moment + shift * mass) + (share * below).sum(dim=-1)
    return top, fade * mass + share.sum(dim=-1), moment, chosen


def _slopes(
    logits: Tensor,
    places: Tensor,
    normaliser: Tensor,
    entropy: Tensor | None,
    grads: list[Tensor | None],
    scale: float,
    temperature: float,
) -> Tensor:
    """Gradient by LOGITS, [n, v] in their format: of a target g, and of all -p (g + g_entropy (log p + entropy)).

    GRADS: by log p of the target and by the ENTROPY, [n] each. PLACES as in `_fold`; NORMALISER: log of sum exp z, [n].
    """
    by_log_p, by_entropy = grads
    log_p = _scores(logits, scale, temperature) - normaliser[:, None]
    weights: Tensor | float = 0.0 if by_log_p is None else by_log_p[:, None]
    if by_entropy is not None and entropy is not None:
        weights = weights + by_entropy[:, None] * (log_p + entropy[:, None])
    slopes = log_p.exp() * weights
    if by_log_p is not None:
        hit = torch.arange(logits.shape[1], device=logits.device) == places[:, None]
        slopes = torch.where(hit, by_log_p[:, None], 0.0) - slopes
    else:
        slopes = -slopes
    factor = scale / temperature
    return (slopes if factor == 1 else slopes * factor).to(logits.dtype)


def _add(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total.float().add_(part)
