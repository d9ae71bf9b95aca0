"""Random batches for the tests: rows of differing length, some empty, some with holes; garbage under the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from rltrain.algos.advantages import compute_advantages
from rltrain.algos.policy_losses import PolicyLossInputs

LOSSES = ["vanilla", "gspo", "cispo"]

seeds = st.integers(0, 2**32 - 1)


def mask_of(rng: np.random.Generator, rows: int, length: int) -> Tensor:
    """Right-padded rows of 0 to LENGTH tokens, a few with a hole; at least two tokens in all."""
    mask = np.arange(length)[None, :] < rng.integers(0, length + 1, size=rows)[:, None]
    mask &= rng.random((rows, length)) > 0.05
    mask[0, :2] = True
    return torch.from_numpy(mask)


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(rng.normal(size=shape) * scale)


def advantage_case(seed: int, rows: int = 8, length: int = 5, groups: int = 3) -> dict[str, Any]:
    """Arguments of compute_advantages; its group numbers are neither sorted nor dense."""
    rng = np.random.default_rng(seed)
    mask = mask_of(rng, rows, length)
    return {
        "token_level_rewards": normal(rng, rows, length) * mask,
        "response_mask": mask,
        "group_ids": torch.from_numpy(rng.permutation([7, -3, 100])[rng.integers(0, groups, size=rows)]),
        "values": normal(rng, rows, length),
        "reward_baselines": normal(rng, rows),
        "gamma": 0.9,
        "lam": 0.8,
        "norm_adv_by_std_in_grpo": bool(rng.integers(2)),
    }


def advantages_of(estimator: str, case: dict[str, Any], **changes: Any) -> tuple[Tensor, Tensor]:
    return compute_advantages(estimator, **{**case, **changes})  # pyright: ignore[reportArgumentType]


def policy_case(
    seed: int, rows: int = 6, length: int = 5, spread: float = 0.5, weights: bool = False
) -> PolicyLossInputs:
    """Log-probabilities with ratios of about exp(± SPREAD): some clipped, some not."""
    rng = np.random.default_rng(seed)
    old = -normal(rng, rows, length).abs() - 0.1
    return PolicyLossInputs(
        log_probs=(old + normal(rng, rows, length, scale=spread)).requires_grad_(),
        old_log_probs=old,
        advantages=normal(rng, rows, length),
        response_mask=mask_of(rng, rows, length),
        rollout_is_weights=normal(rng, rows, length).abs() if weights else None,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=3.0,
    )


def spoil(tensor: Tensor, mask: Tensor, rng: np.random.Generator) -> Tensor:
    """TENSOR with NaN, infinities and huge numbers outside the MASK."""
    garbage = torch.from_numpy(rng.choice([np.nan, np.inf, -np.inf, 1e30, -1e30], size=tuple(tensor.shape)))
    return torch.where(mask, tensor.detach(), garbage.to(tensor.dtype))


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Gradient of the sum of LOSS, by autograd."""
    leaf = at.detach().clone().requires_grad_()
    loss(leaf).sum().backward()
    assert leaf.grad is not None
    return leaf.grad
