"""Functions that pass over memory many times, as one kernel each: made by torch.compile, on a GPU alone.

A compiler that is not there (Triton, or the C compiler that builds its launchers) costs speed and no run.
"""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R], like: Tensor) -> Callable[P, R]:
    """FUNCTION, or for tensors where LIKE is the kernel that does the same."""
    return made(function) if compiles(like) else function


def compiles(like: Tensor) -> bool:
    """Whether kernels are made for tensors where LIKE is."""
    return on_gpu(like.device) and can_compile()


def on_gpu(device: torch.device) -> bool:
    """Whether kernels of one's own pay off on DEVICE."""
    return device.type == "cuda"


_MADE: dict[Any, Any] = {}


def made(function: Callable[P, R]) -> Callable[P, R]:
    """FUNCTION compiled, once for all sizes."""
    return _MADE.setdefault(function, _MADE.get(function) or torch.compile(function, dynamic=True))


def is_made(function: Callable[..., Any]) -> bool:
    """Whether FUNCTION came out of `made`."""
    return any(function is one for one in _MADE.values())


@cache
def can_compile() -> bool:
    """Whether a small function compiles and runs on this GPU. The first call takes seconds."""
    try:
        one = torch.ones(2, device="cuda")
        return bool((torch.compile(_trial)(one) == 4).all())
    except Exception:  # a compiler's errors are of many kinds
        return False


def _trial(values: Tensor) -> Tensor:
    return (values + 1) * 2
