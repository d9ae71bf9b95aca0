"""Whether training reads the prompts that the engine read: digests of token ids, kept with each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rltrain.core.batch import Batch
from rltrain.core.metrics import Metrics
from rltrain.core.trajectory import IntArray


def of_engine(prompts: Sequence[IntArray]) -> dict[str, Tensor]:
    """Fields of the batch, int64 `[B]`, of PROMPTS as the engine read them; none where it does not say so of all."""
    if not all(len(prompt) for prompt in prompts):
        return {}
    return {
        "rollout_prompt_lengths": torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64),
        "rollout_prompt_digests": torch.tensor([_digest(prompt) for prompt in prompts], dtype=torch.int64),
    }


def compared(batch: Batch) -> Metrics:
    """Share of the rows whose prompt is another one for training, and by how many tokens it is longer there.

    Rollout and training differ by everything that follows from it: a second rendering of the chat template, a special
    token that one side adds. Empty where the engine did not say.
    """
    if "rollout_prompt_digests" not in batch.names:
        return {}
    num_response = batch["response_mask"].shape[1]
    ids, real = batch["input_ids"][:, :-num_response], batch["attention_mask"][:, :-num_response].bool()
    digests = torch.tensor([_digest(row[mask].numpy()) for row, mask in zip(ids, real, strict=True)], dtype=torch.int64)
    longer = real.sum(dim=-1) - batch["rollout_prompt_lengths"]
    return {
        "training/rollout_prompt_mismatch": float((digests != batch["rollout_prompt_digests"]).double().mean()),
        "training/rollout_prompt_length_diff": float(longer.double().mean()),
    }


def _digest(ids: NDArray[Any]) -> int:
    return crc32(ids.astype(np.int64).tobytes())
