"""What is taken off the reward: KL to the reference, and DAPO's penalty for overlong responses."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.kl import kl_penalty
from rltrain.algos.masked import row_means, zero_outside


def apply_kl_to_reward(
    token_level_scores: Tensor, old_log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, coef: float, kind: str
) -> tuple[Tensor, float]:
    """token_level_rewards `[B, R]`, and the mean KL in nats per token.

    r_t = score_t - coef KL_t (Ziegler et al. 2019, arXiv:1909.08593). The mean is over each row's tokens, then over
    the rows that have any, as verl's adaptive controller takes it; 0 where there are none.
    """
    with torch.no_grad():
        kl = kl_penalty(old_log_probs, ref_log_probs, kind, mask)
        rewards = zero_outside(token_level_scores, mask) - coef * kl
        num_rows = mask.any(dim=-1).sum().clamp(min=1)
        return rewards, float(row_means(kl, mask).sum() / num_rows)


def overlong_penalty(
    response_lengths: Tensor, max_response_length: int, buffer_len: int, penalty_factor: float
) -> Tensor:
    """Soft punishment of long responses, `[B]`, between -penalty_factor and 0 (DAPO, arXiv:2503.14476, equation 13).

    0 up to max_response_length - buffer_len tokens, then falling in a straight line to -penalty_factor at
    max_response_length. RESPONSE_LENGTHS `[B]` in tokens; integers give float32.

    Raises:
        ValueError: buffer_len is not within 1 … max_response_length.
    """
    if not 1 <= buffer_len <= max_response_length:
        raise ValueError(f"overlong buffer of {buffer_len} tokens, must be 1 to {max_response_length}")
    lengths = response_lengths if response_lengths.is_floating_point() else response_lengths.float()
    exceeded = lengths - (max_response_length - buffer_len)
    return -penalty_factor * (exceeded / buffer_len).clamp(0.0, 1.0)
