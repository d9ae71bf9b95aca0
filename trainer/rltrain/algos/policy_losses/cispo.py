"""CISPO: clipped importance weights that every token keeps (MiniMax 2025, arXiv:2506.13585)."""

from __future__ import annotations

from torch import Tensor

from rltrain.algos.policy_losses.inputs import PolicyLossInputs


def cispo(inputs: PolicyLossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each token `[B, R]`, and sums over tokens of `pg_clipfrac`, `pg_clipfrac_lower` (0), `ppo_kl`.

    L = -sg[clip(ratio, 1 - low, 1 + high)] A log pi, sg = stop-gradient: REINFORCE with a bounded weight. Unlike in
    PPO a clipped token still has a gradient.
    """
    inputs = inputs.cleaned()
    log_ratio = inputs.log_ratio()
    ratio = log_ratio.detach().exp()
    held = inputs.clip(ratio)
    return inputs.weighted(-held * inputs.advantages * inputs.log_probs), inputs.metric_sums(log_ratio, held != ratio)
