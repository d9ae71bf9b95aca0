"""Group sequence policy optimisation: one ratio for a whole response (Zheng et al. 2025, arXiv:2507.18071)."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.masked import row_means
from rltrain.algos.policy_losses.inputs import PolicyLossInputs

LOG_RATIO_MAX = 10.0
"""Upper bound of the sequence's log ratio, as in verl."""


def gspo(inputs: PolicyLossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each token `[B, R]`, and sums over tokens of `pg_clipfrac`, `pg_clipfrac_lower` (0), `ppo_kl`.

    s = (pi(y) / pi_old(y))^(1 / |y|) for response y;  s_t = sg[s] pi_t / sg[pi_t], sg = stop-gradient: its value is s,
    its gradient that of token t alone (the paper's GSPO-token);  L_t = max(-A s_t, -A clip(s_t, 1 - low, 1 + high)).
    With `seq-mean-token-mean` the gradient is that of the paper's sequence loss. A row must be whole: its ratio is the
    mean over its own tokens, whichever micro batch it is in.
    """
    inputs = inputs.cleaned()
    log_ratio = inputs.log_probs - inputs.old_log_probs
    of_sequence = row_means(log_ratio, inputs.response_mask).detach().unsqueeze(-1)
    ratio = (inputs.log_probs - inputs.log_probs.detach() + of_sequence).clamp(max=LOG_RATIO_MAX).exp()
    plain, held = -inputs.advantages * ratio, -inputs.advantages * inputs.clip(ratio)
    return inputs.weighted(torch.maximum(plain, held)), inputs.metric_sums(log_ratio, held > plain)
