"""Whether training reads the prompts that the engine read: digests of token ids, kept with each sample."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor

from rltrain.core.batch import Batch
from rltrain.core.metrics import Metrics
from rltrain.workers.rollout.protocol import Completion


def of_engine(completions: Sequence[Completion]) -> dict[str, Tensor]:
    """Fields of the batch, int64 `[B]`; none where an engine does not say what it read."""
    if not all(completion.prompt_ids for completion in completions):
        return {}
    prompts = [torch.tensor(completion.prompt_ids, dtype=torch.int64) for completion in completions]
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
    digests = torch.tensor([_digest(row[mask]) for row, mask in zip(ids, real, strict=True)], dtype=torch.int64)
    longer = real.sum(dim=-1) - batch["rollout_prompt_lengths"]
    return {
        "training/rollout_prompt_mismatch": float((digests != batch["rollout_prompt_digests"]).double().mean()),
        "training/rollout_prompt_length_diff": float(longer.double().mean()),
    }


def _digest(ids: Tensor) -> int:
    return crc32(ids.contiguous().numpy().tobytes())
