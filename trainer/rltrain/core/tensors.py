"""Tensors as lists of Python numbers, with the types that torch's own `tolist` does not declare; and their memory."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor


def floats(tensor: Tensor) -> list[float]:
    """The numbers of TENSOR, `[N]`."""
    return cast("list[float]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def ints(tensor: Tensor) -> list[int]:
    """The numbers of TENSOR, `[N]`, of an integer dtype."""
    return cast("list[int]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def empty_cache() -> None:
    """Give memory that torch holds for later back to the GPU, once nothing computes there; unused, do nothing.

    Where segments grow, `torch.cuda.empty_cache` waits for no stream but the one that took the memory (2.11). FSDP2
    takes gradients in the stream of its reduce-scatters, and the optimizer reads them in another: a large model's
    were unmapped under it, an "illegal memory access" (pytorch/pytorch#193686, #196258).
    """
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
