"""What each operation of a role gives on one sequence, as a rank computes it."""

# Safetensors is typed in part.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from trainer.fsdp.forward import Policy
from trainer.fsdp.role import Role
from trainer.tracing.listen import listening
from trainer.tracing.names import LOG_PROBS


def trace(role: Role, policy: Policy, token_ids: Sequence[int], file: Path | None, given: Path | None = None) -> None:
    """Read TOKEN_IDS through ROLE's model once (collective), and write what each operation gave.

    The pass is that of log-probabilities, packed or padded as POLICY says, at temperature 1.

    Args:
        role: whose model reads.
        policy: how it is read.
        token_ids: two at least.
        file: where the outputs go (safetensors), for all tokens but the last; None: nowhere.
        given: such a file of the same tokens; each operation then reads what those before it gave there.
    """
    role.model.eval()
    others = None if given is None else load_file(given)
    with role.in_use(), torch.no_grad(), listening(role.model, others) as recorder:
        stats = replace(policy, temperature=1.0)(one_row(token_ids, role.device))
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
