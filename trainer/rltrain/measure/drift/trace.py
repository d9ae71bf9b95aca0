"""What each operation of a model gives on one sequence, as a rank computes it."""

# Safetensors is typed in part.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from rltrain.tracing.listen import listening
from rltrain.tracing.names import LOG_PROBS
from rltrain.workers.fsdp.forward import Policy
from rltrain.workers.fsdp.sharded_model import ShardedModel


def trace(
    sharded: ShardedModel, policy: Policy, token_ids: Sequence[int], file: Path | None, given: Path | None = None
) -> None:
    """Read TOKEN_IDS once (collective), and write what each operation gave.

    The pass is that of log-probabilities, packed or padded as POLICY says, at temperature 1, with whole logits.

    Args:
        sharded: the model that reads.
        policy: how it is read.
        token_ids: two at least.
        file: where the outputs go (safetensors), for all tokens but the last; None: nowhere.
        given: such a file of the same tokens; each operation then reads what those before it gave there.
    """
    sharded.model.eval()
    others = None if given is None else load_file(given)
    with sharded.in_use(), torch.no_grad(), listening(sharded.model, others) as recorder:
        stats = replace(policy, temperature=1.0, head=None)(one_row(token_ids, sharded.device))
        recorder.add(LOG_PROBS, stats.log_probs[0][:, None])
    if file is not None:
        recorder.save(file, len(token_ids) - 1)


def one_row(token_ids: Sequence[int], device: str) -> dict[str, Tensor]:
    """TOKEN_IDS as a micro batch: a prompt of one token, the rest is the response."""
    ids = torch.tensor([list(token_ids)], device=device)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(ids.shape[1], device=device)[None],
        "response_mask": torch.ones_like(ids[:, 1:]),
    }
