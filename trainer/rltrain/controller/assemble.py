"""From prompts and what came back for them to one padded batch."""

# NumPy's and torch's functions on arrays are typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rltrain.controller.prompt_digests import of_engine
from rltrain.core.batch import Batch, Sample
from rltrain.core.trajectory import IntArray, Trajectory
from rltrain.workers.rollout.protocol import Completion


def assemble(samples: Sequence[Sample], trajectories: Sequence[Trajectory], pad: int) -> Batch:
    """One batch: prompts padded on the left with the token PAD, what follows them on the right, to the longest of each.

    `rollout_log_probs` is there if any trajectory has log-probabilities; `prompts` and `responses` share the memory of
    `input_ids`.

    Args:
        samples: one row each, with `prompt_ids` and `response_text`.
        trajectories: what followed their prompts, in the same order.
        pad: token id.
    """
    lengths = [len(one.token_ids) for one in trajectories]
    num_prompt, num_response = max(len(s.prompt_ids) for s in samples), max(lengths)
    shape = (len(samples), num_prompt + num_response)
    ids = np.empty(shape, dtype=np.int32)
    attention, loss = np.zeros(shape, dtype=np.bool_), np.zeros((shape[0], num_response), dtype=np.bool_)
    for row, (sample, one) in enumerate(zip(samples, trajectories, strict=True)):
        prompt, response = num_prompt - len(sample.prompt_ids), num_prompt + lengths[row]
        is_of_group = row > 0 and sample.prompt_ids is samples[row - 1].prompt_ids
        ids[row, :prompt] = pad
        ids[row, prompt:num_prompt] = ids[row - 1, prompt:num_prompt] if is_of_group else sample.prompt_ids
        ids[row, num_prompt:response] = one.token_ids
        ids[row, response:] = pad
        attention[row, prompt:response] = True
        loss[row, : lengths[row]] = one.loss_mask
    input_ids = torch.from_numpy(ids)
    fields = {
        "prompts": input_ids[:, :num_prompt],
        "responses": input_ids[:, num_prompt:],
        "input_ids": input_ids,
        "attention_mask": torch.from_numpy(attention),
        "response_mask": torch.from_numpy(loss),
        "truncated": torch.tensor([one.truncated for one in trajectories]),
        "policy_version": torch.tensor([one.oldest_version for one in trajectories], dtype=torch.int64),
        **_log_probs(trajectories, num_response),
        **of_engine([one.prompt_ids for one in trajectories]),
    }
    return Batch.of(samples, fields)


def answered(samples: Sequence[Sample], completions: Sequence[Completion], tokenizer: PreTrainedTokenizerBase) -> Batch:
    """The batch of SAMPLES with one COMPLETION each, decoded."""
    texts = decoded(tokenizer, [one.token_ids for one in completions])
    told = [replace(sample, response_text=text) for sample, text in zip(samples, texts, strict=True)]
    return assemble(told, [one.trajectory() for one in completions], pad_of(tokenizer))


def decoded(tokenizer: PreTrainedTokenizerBase, answers: Sequence[IntArray]) -> list[str]:
    """The texts of ANSWERS, special tokens left out."""
    ids: list[list[int]] = [answer.tolist() for answer in answers]
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def pad_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Its token for padding."""
    return cast(int, tokenizer.pad_token_id)


def _log_probs(trajectories: Sequence[Trajectory], width: int) -> dict[str, Tensor]:
    asked = [one.log_probs is not None for one in trajectories]
    if not any(asked):
        return {}
    values: NDArray[np.float32] = np.zeros((len(trajectories), width), dtype=np.float32)
    for row, one in enumerate(trajectories):
        if one.log_probs is not None:
            values[row, : len(one.log_probs)] = one.log_probs
    return {"rollout_log_probs": torch.from_numpy(values), "rollout_log_probs_asked": torch.tensor(asked)}
