"""Tensors as lists of Python numbers, with the types that torch's own `tolist` does not declare."""

from __future__ import annotations

from typing import cast

from torch import Tensor


def floats(tensor: Tensor) -> list[float]:
    """The numbers of TENSOR, `[N]`."""
    return cast("list[float]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def ints(tensor: Tensor) -> list[int]:
    """The numbers of TENSOR, `[N]`, of an integer dtype."""
    return cast("list[int]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]
