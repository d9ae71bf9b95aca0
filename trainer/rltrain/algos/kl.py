"""Estimates of KL(policy, reference) from sampled tokens, and the coefficient of KL in the reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from rltrain.algos.masked import zero_outside
from rltrain.config.schema import KlCtrlConfig

K3_LOG_RATIO_BOUND = 20.0
K3_BOUND = 10.0
"""Bounds of |log ratio| and of k3, as in verl: a token beyond them counts as the bound and has no gradient."""


def k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """log pi - log pi_ref: unbiased, can be negative; its gradient is 0 on average, so no use as a loss."""
    return log_probs - ref_log_probs


def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """|log pi - log pi_ref|."""
    return (log_probs - ref_log_probs).abs()


def k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(log pi - log pi_ref)^2 / 2: biased, low variance; its gradient is the KL's, on average."""
    return 0.5 * (log_probs - ref_log_probs).square()


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = log pi_ref - log pi: unbiased, never negative. Bounded as above."""
    difference = (ref_log_probs - log_probs).clamp(-K3_LOG_RATIO_BOUND, K3_LOG_RATIO_BOUND)
    # expm1: between close policies exp(d) - 1 is a difference of two numbers near 1, with few right digits.
    return (difference.expm1() - difference).clamp(0.0, K3_BOUND)


KL_ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": k1,
    "k1": k1,
    "abs": absolute,
    "mse": k2,
    "k2": k2,
    "low_var_kl": k3,
    "k3": k3,
}
"""J. Schulman, Approximating KL divergence, 2020 (joschu.net/blog/kl-approx.html); verl's names beside his."""


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, kind: str, mask: Tensor | None = None) -> Tensor:
    """Estimate KIND of KL(policy, reference) of each token, `[B, R]`; 0 outside MASK (bool `[B, R]`; None: none is)."""
    if mask is not None:
        log_probs, ref_log_probs = zero_outside(log_probs, mask), zero_outside(ref_log_probs, mask)
    return KL_ESTIMATORS[kind](log_probs, ref_log_probs)


@dataclass
class FixedKl:
    """Constant KL coefficient."""

    value: float

    def update(self, current_kl: float, num_samples: int) -> None:
        """No-op."""

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Keep the config's value: it may have been changed on purpose since the checkpoint."""


@dataclass
class AdaptiveKl:
    """KL coefficient that steers the KL to a target (Ziegler et al. 2019, arXiv:1909.08593, section 2.2)."""

    value: float
    target_kl: float
    horizon: int
    """Samples over which a lasting error of 20 % multiplies the coefficient by about e^0.2."""

    def update(self, current_kl: float, num_samples: int) -> None:
        """value *= 1 + clip(current_kl / target_kl - 1, -0.2, 0.2) * num_samples / horizon. A NaN changes nothing."""
        if math.isnan(current_kl):
            return
        error = min(max(current_kl / self.target_kl - 1, -0.2), 0.2)
        self.value *= 1 + error * num_samples / self.horizon

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on where STATE was taken."""
        self.value = float(state["value"])


KlController = FixedKl | AdaptiveKl


def kl_controller(config: KlCtrlConfig) -> KlController:
    """The controller that CONFIG (`algorithm.kl_ctrl`) asks for."""
    if config.type == "adaptive":
        return AdaptiveKl(config.kl_coef, config.target_kl, config.horizon)
    return FixedKl(config.kl_coef)
