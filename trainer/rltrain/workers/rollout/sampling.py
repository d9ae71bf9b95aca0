"""Seeds of requests, and the distribution that tokens are drawn from (used by the hf engine; vLLM has its own)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from rltrain.workers.rollout.protocol import Sampling


def request_seed(run_seed: int, step: int, prompt: int | str, sample: int) -> int:
    """The seed of one completion, 0 <= seed < 2^31: the same in every process, on every machine.

    Args:
        run_seed: `trainer.seed`.
        step: training step.
        prompt: names the prompt: its row in the data set, or its uid.
        sample: number of the sample within its group.
    """
    words = f"{run_seed}/{step}/{prompt}/{sample}".encode()
    return int.from_bytes(hashlib.sha256(words).digest()[:4], "big") >> 1


def token_log_probs(logits: Tensor, sampling: Sampling, banned: Tensor) -> Tensor:
    """Log-probabilities `[B, V]` that the next tokens are drawn from, float32.

    Args:
        logits: `[B, V]`.
        sampling: temperature, top-k, top-p. Greedy (temperature 0): the model's own distribution.
        banned: `[B, V]` bool, tokens that must not come (end of sequence before `min_tokens`).
    """
    scores = logits.float().masked_fill(banned, -torch.inf)
    if sampling.temperature == 0:
        return scores.log_softmax(-1)
    scores = scores / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        smallest = scores.topk(sampling.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < smallest, -torch.inf)
    if sampling.top_p < 1:
        scores = _nucleus(scores, sampling.top_p)
    return scores.log_softmax(-1)


def draw(log_probs: Tensor, sampling: Sampling, generators: Sequence[torch.Generator]) -> Tensor:
    """One token `[B]` for each row of LOG_PROBS `[B, V]`, drawn with the row's own generator.

    The race of exponential clocks: argmax of p / Exp(1) is a sample from p, whatever the other rows draw.
    """
    if sampling.temperature == 0:
        return log_probs.argmax(-1)
    clocks = torch.empty_like(log_probs)
    for row, generator in zip(clocks, generators, strict=True):
        row.exponential_(generator=generator)
    return (log_probs.exp() / clocks).argmax(-1)


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Keep the likeliest tokens until their mass reaches TOP_P (Holtzman et al. 2020); always at least one."""
    ordered, order = scores.sort(dim=-1, descending=True)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
    return scores.masked_fill((before >= top_p).scatter(-1, order, before >= top_p), -torch.inf)
