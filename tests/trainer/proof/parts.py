"""Parts of the steps that tests make: a critic, and the seed that words stand for."""

from __future__ import annotations

import hashlib

from torch import nn
from transformers import Qwen2Config, Qwen2Model


class Value(nn.Module):
    """A critic with the names of rltrain's."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.backbone = Qwen2Model(config)
        self.head = nn.ModuleDict({"linear": nn.Linear(config.hidden_size, 1)})


def seed_of(words: str) -> int:
    """Four bytes of their SHA-256."""
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big")
