"""Sums and statistics over the positions where a mask is true. All other positions are never read."""

from __future__ import annotations

import torch
from torch import Tensor

VARIANCE_FLOOR = 1e-8
"""Added to the variance in `whiten`: a constant input gives zeros, not a division by zero."""


def zero_outside(values: Tensor, mask: Tensor) -> Tensor:
    """VALUES `[...]` where MASK is true, 0 elsewhere.

    Not `values * mask`: 0 * NaN is NaN, in the result and in the gradient. To keep gradients clean this comes first,
    before any function whose derivative could be NaN.
    """
    return values.masked_fill(~mask, 0)


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of VALUES `[...]` over MASK, a scalar."""
    return zero_outside(values, mask).sum()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of VALUES `[...]` over MASK, a scalar; 0 where the mask is empty."""
    return masked_sum(values, mask) / mask.sum().clamp(min=1)


def row_means(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of each row of VALUES `[B, R]` over its own tokens, `[B]`; 0 for a row without tokens."""
    return zero_outside(values, mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """VALUES `[B, R]` shifted to mean 0 and scaled to variance 1 over all tokens of MASK; 0 elsewhere.

    (x - mean) / sqrt(var + 1e-8), var with n - 1 below. One token alone has no variance: it gives 0.
    """
    valid = values[mask]
    if valid.numel() < 2:
        return torch.zeros_like(values)
    # Measured from the smallest value, so that equal values give exactly 0 and not a rounding error times 1e4.
    shifted = valid - valid.min()
    centred = shifted - shifted.mean()
    variance = centred.square().sum() / (valid.numel() - 1)
    return torch.zeros_like(values).masked_scatter(mask, centred * torch.rsqrt(variance + VARIANCE_FLOOR))
