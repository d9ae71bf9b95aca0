"""Attention for packed rows: many sequences side by side in one row, each blind to the others.

Registered with transformers under the name `rltrain_packed`. Sequence borders come as `cu_seq_lens_q`, which every
model that supports attention back ends hands down to its layers. Not all of them build a block-diagonal mask from
restarting position_ids (OPT does not, in transformers 5.17 and 5.19), and such a mask costs T x T memory where this
costs none. Padded rows come with a mask instead, and go to torch's SDPA. Rows with neither are those of a model that
drops the borders on their way, and are refused.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from inspect import signature
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rltrain.core.errors import UserError
from rltrain.core.tensors import ints

NAME = "rltrain_packed"
KEY = "actor_rollout_ref.model.use_remove_padding"

_takes_groups = "enable_gqa" in signature(varlen_attn).parameters
"""Whether the kernel shares keys and values between query heads by itself: since torch 2.13 at the latest."""
_is_repeatable = False

UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments that change the scores, and that SDPA or the packed kernel would leave out."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence.

    Args:
        module: the attention layer.
        query: [1, H, T, D]; key and value: [1, H_kv, T, D].
        key: see query.
        value: see query.
        attention_mask: ignored for packed rows; of padded rows, which always have one (see `packed_mask`).
        cu_seq_lens_q: [N + 1] int32, where each sequence begins, and T; None: rows are padded.
        max_length_q: tokens of the longest sequence.
        sliding_window: tokens that a token sees, itself included; None: all before it.
        kwargs: what else the layer passes, such as `scaling`.

    Returns:
        [1, T, H, D], and None for the attention weights.

    Raises:
        UserError: the model shapes its scores in a way that packed rows do not support, or its borders do not arrive.
    """
    used = [name for name in UNSUPPORTED if kwargs.get(name) is not None]
    if used:
        raise UserError(f"{type(module).__name__} needs '{used[0]}', which packed rows do not support: set {KEY}=false")
    if cu_seq_lens_q is None:
        if attention_mask is None:
            raise UserError(
                f"{type(module).__name__} is not told where packed rows begin, and would mix them: set {KEY}=false"
            )
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        assert max_length_q is not None
        return varlen(query, key, value, cu_seq_lens_q, max_length_q, sliding_window, kwargs.get("scaling")), None
    parts: list[Tensor] = []
    for start, end in pairwise(ints(cu_seq_lens_q)):
        q, k, v = (tensor[:, :, start:end] for tensor in (query, key, value))
        mask = window_mask(end - start, sliding_window, query.device)
        parts.append(sdpa_attention_forward(module, q, k, v, mask, **kwargs)[0])
    return torch.cat(parts, dim=1), None


def window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """[1, 1, length, length]: True where a token sees another; None where plain causality says it all."""
    if window is None or length <= window:
        return None
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    return ones.tril().triu(1 - window)[None, None]


def varlen(
    query: Tensor, key: Tensor, value: Tensor, borders: Tensor, longest: int, window: int | None, scale: float | None
) -> Tensor:
    """The flash kernel for sequences of different length. Shapes as in `packed_attention`."""
    heads, kv_heads = query.shape[1], key.shape[1]
    grouped: dict[str, Any] = {"enable_gqa": True} if heads != kv_heads and _takes_groups else {}
    if heads != kv_heads and not grouped:
        key, value = (tensor.repeat_interleave(heads // kv_heads, dim=1) for tensor in (key, value))
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    left = -1 if window is None else window - 1
    if _is_repeatable:
        q, k, v = _passed(torch.are_deterministic_algorithms_enabled(), q, k, v)
    out = varlen_attn(q, k, v, borders, borders, longest, longest, scale=scale, window_size=(left, 0), **grouped)
    assert isinstance(out, Tensor)
    if _is_repeatable:
        (out,) = _passed(True, out)
    return out[None]


def repeatable(on: bool) -> None:
    """Whether gradients of packed attention are the same bits each time, from the next forward pass on.

    The flash kernel's backward adds up a query's gradient in the order in which its blocks finish, unless torch asks
    for deterministic algorithms. That costs time, so that only steps that may be run again pay for it.
    """
    global _is_repeatable
    _is_repeatable = on


def _passed(on: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
    return cast("tuple[Tensor, ...]", _Deterministic.apply(on, *tensors))


class _Deterministic(torch.autograd.Function):
    """Passes tensors on; when gradients come back through it, deterministic algorithms go ON or off."""

    @staticmethod
    def forward(ctx: Any, on: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.on = on
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        torch.use_deterministic_algorithms(ctx.on)
        return (None, *gradients)


def packed_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
    """The mask of padded rows, even where causality says it all; none for packed rows, whose borders come otherwise."""
    if attention_mask is None:
        return None
    return sdpa_mask(*args, attention_mask=attention_mask, **{**kwargs, "allow_is_causal_skip": False})


def register() -> None:
    """Make `attn_implementation="rltrain_packed"` known to transformers."""
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, packed_mask)
