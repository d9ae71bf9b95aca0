"""Rows that fill a micro batch to its brim: prompts and responses of full length, random tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.aggregation import AggNormalizer
from rltrain.workers.fsdp.micro import MicroSize, MiniBatch


def full_rows(size: MicroSize, prompt: int, response: int, vocab_size: int, passes: int = 1) -> dict[str, Tensor]:
    """What PASSES micro batches of SIZE hold at most: fields as in `rltrain.workers.fsdp.micro.Shard`, on the host.

    With a limit of tokens, the last row of each micro batch is shorter, so that the limit is reached.
    """
    longest = prompt + response
    lengths = [longest] * (size.num_rows or 1)
    if size.num_tokens is not None:
        whole, rest = divmod(size.num_tokens, longest)
        # A rest of one or two tokens holds no prompt with a response.
        lengths = [longest] * whole + ([rest] if rest > 2 else [])
    lengths *= passes
    shape = (len(lengths), longest)
    mask = torch.zeros(shape, dtype=torch.long)
    for row, length in enumerate(lengths):
        short = max(min(prompt, length - 1), 1)
        mask[row, prompt - short : prompt + (length - short)] = 1
    return {
        "input_ids": torch.randint(0, vocab_size, shape, generator=torch.Generator().manual_seed(1)) * mask,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
        "response_mask": mask[:, prompt:].bool(),
    }


def mini_batch(rows: dict[str, Tensor], size: MicroSize, passes: int) -> MiniBatch:
    """ROWS as one optimizer step of PASSES micro batches, with everything that actor and critic learn from."""
    shape = rows["response_mask"].shape
    zeros = {name: torch.zeros(shape) for name in ("old_log_probs", "ref_log_probs", "values")}
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    fields = {**rows, **zeros, "advantages": noise, "returns": noise}
    return MiniBatch(fields, AggNormalizer.of(rows["response_mask"], float(shape[1])), passes)
