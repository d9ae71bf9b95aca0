"""From a loss for each token to one number: `loss_agg_mode`, exact under any cut into micro batches and ranks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rltrain.algos.masked import row_means, zero_outside
from rltrain.config.schema import LossAggMode


@dataclass(frozen=True)
class AggNormalizer:
    """What the sums are divided by: counts over the whole mini batch, all ranks."""

    num_tokens: int
    num_sequences: int
    """Rows with at least one token in the loss."""
    scale_factor: float
    """Divisor of `seq-mean-token-sum-norm`: one fixed length for all responses."""

    @classmethod
    def of(cls, response_mask: Tensor, scale_factor: float) -> AggNormalizer:
        """The counts of RESPONSE_MASK, bool `[B, R]`, of the whole mini batch."""
        return cls(int(response_mask.sum()), int(response_mask.any(dim=-1).sum()), scale_factor)


def aggregate(terms: Tensor, mask: Tensor, mode: LossAggMode, normalizer: AggNormalizer) -> Tensor:
    """The share of the mini batch's loss that TERMS `[B, R]` of one micro batch bring, a scalar.

    Summed over micro batches and ranks, the shares are the loss of the undivided mini batch. With l_it the term of
    token t of response i, N tokens and S responses in the mini batch:

    - token-mean: sum l_it / N (DAPO, arXiv:2503.14476): long responses weigh more.
    - seq-mean-token-sum: sum l_it / S.
    - seq-mean-token-mean: sum_i (sum_t l_it / |y_i|) / S (GRPO, arXiv:2402.03300).
    - seq-mean-token-sum-norm: sum l_it / (S * scale_factor) (Dr.GRPO, arXiv:2503.20783).

    Rows without tokens bring 0 and count nowhere; a mini batch of such rows alone has loss 0.
    """
    sequences = max(normalizer.num_sequences, 1)
    if mode == "seq-mean-token-mean":
        return row_means(terms, mask).sum() / sequences
    total = zero_outside(terms, mask).sum()
    if mode == "token-mean":
        return total / max(normalizer.num_tokens, 1)
    if mode == "seq-mean-token-sum":
        return total / sequences
    return total / (sequences * normalizer.scale_factor)
