"""From prompts and what the engine made of them to one padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rltrain.controller.prompt_digests import of_engine
from rltrain.core.batch import Batch, Sample
from rltrain.workers.rollout.protocol import Completion


def assemble(
    samples: Sequence[Sample],
    completions: Sequence[Completion],
    tokenizer: PreTrainedTokenizerBase,
    keep_log_probs: bool = True,
) -> Batch:
    """One batch: prompts padded on the left, responses on the right, to the longest of each.

    Args:
        samples: the prompts, one row each (with `prompt_ids`).
        completions: what the engine answered, in the same order.
        tokenizer: decodes the responses.
        keep_log_probs: give the batch the engine's log-probabilities, as `rollout_log_probs`.
    """
    pad = cast(int, tokenizer.pad_token_id)
    prompts, prompt_mask = _pad([s.prompt_ids for s in samples], pad, left=True)
    responses, response_mask = _pad([c.token_ids for c in completions], pad, left=False)
    attention_mask = torch.cat([prompt_mask, response_mask], dim=1)
    log_probs = torch.zeros(responses.shape, dtype=torch.float32)
    for row, completion in enumerate(completions):
        log_probs[row, : len(completion.log_probs)] = torch.tensor(completion.log_probs, dtype=torch.float32)
    texts = _decode(tokenizer, completions)
    batch = Batch.of(
        [replace(sample, response_text=text) for sample, text in zip(samples, texts, strict=True)],
        {
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], dim=1),
            "attention_mask": attention_mask,
            "position_ids": (attention_mask.long().cumsum(-1) - 1).clamp(min=0),
            "response_mask": response_mask,
            "rollout_log_probs": log_probs,
            "truncated": torch.tensor([c.finish_reason == "length" for c in completions]),
            "policy_version": torch.tensor([c.policy_version for c in completions], dtype=torch.int64),
            **of_engine(completions),
        },
    )
    return batch if keep_log_probs else batch.only(batch.names - {"rollout_log_probs"})


def _decode(tokenizer: PreTrainedTokenizerBase, completions: Sequence[Completion]) -> list[str]:
    ids = [list(completion.token_ids) for completion in completions]
    return tokenizer.batch_decode(ids, skip_special_tokens=True)  # pyright: ignore[reportUnknownMemberType]


def _pad(rows: Sequence[Sequence[int]], pad: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """ROWS as one tensor `[B, longest]` and its mask of real tokens."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad, dtype=torch.int64)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[number, place] = torch.tensor(list(row), dtype=torch.int64)
        mask[number, place] = True
    return ids, mask
