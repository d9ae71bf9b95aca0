"""Random order that depends on a key alone."""

from __future__ import annotations

import hashlib

import torch

from rltrain.core.tensors import ints


def permutation(size: int, key: str) -> list[int]:
    """The numbers 0 … SIZE - 1 in an order drawn from KEY.

    The key is hashed, so that neighbouring keys (epoch 1 of seed 1, epoch 0 of seed 2) have nothing in common.
    """
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(seed)
    return ints(torch.randperm(size, generator=generator))
