"""Runs with a mistake of a known kind, as their metrics would show it; every shape here was seen in a real toy run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts

STEPS = 40
FLOAT32: dict[str, Any] = {
    "actor_rollout_ref.rollout.dtype": "float32",
    "actor_rollout_ref.actor.fsdp_config.dtype": "float32",
    "actor_rollout_ref.rollout.temperature": 1.0,
    "trainer.device": "cpu",
}
BFLOAT16 = FLOAT32 | {
    "actor_rollout_ref.rollout.dtype": "bfloat16",
    "actor_rollout_ref.actor.fsdp_config.dtype": "bfloat16",
    "trainer.device": "cuda",
}
LOG, PROB = "training/rollout_log_probs_diff_mean", "training/rollout_probs_diff_mean"


def jitter(step: int, size: float = 0.02) -> float:
    """A number around 1 that looks like noise and is the same each time."""
    return 1 + size * math.sin(12.9898 * step)


def run(
    drift: Callable[[int], float],
    *,
    moves: bool = True,
    settings: dict[str, Any] | None = None,
    steps: int = STEPS,
    framework: str = "rltrain",
    only: tuple[str, ...] = (),
    **more: Callable[[int], float],
) -> Facts:
    """A run with DRIFT(step) as the mean |log p| difference.

    MOVES: the engine's policy changes. ONLY: of what the run would write, these metrics. MORE: others, `/` as `__`.
    """
    learns = (lambda step: 0.02 * step) if moves else (lambda step: 0.1)
    written: dict[str, Callable[[int], float]] = {
        LOG: drift,
        PROB: lambda step: drift(step) / 8,
        "rollout_corr/k3_kl": lambda step: 0.8 * drift(step) ** 2,
        "rollout_corr/kl": lambda step: 0.8 * drift(step) ** 2 * jitter(step, 0.1),
        "rollout_corr/chi2_token": lambda step: 2 * drift(step) ** 2,
        "rollout_corr/rollout_log_ppl": lambda step: (3 - learns(step)) * jitter(step, 0.005),
        "critic/score/mean": lambda step: learns(step) * jitter(step),
        "response_length/mean": lambda step: 5.5 * jitter(step, 0.01),
        "actor/ppo_kl": lambda step: 0.004 * jitter(step, 0.5),
        "actor/loss_tokens": lambda step: 3000.0,
        "training/rollout_log_probs_corr": lambda step: 1 - min(0.5, drift(step) ** 2),
        "training/rollout_log_probs_slope": lambda step: 1 - min(0.5, drift(step) ** 2),
        "training/rollout_prompt_mismatch": lambda step: 0.0,
        "training/policy_staleness/mean": lambda step: 0.0,
    }
    written |= {name.replace("__", "/"): value for name, value in more.items()}
    kept = {name: value for name, value in written.items() if not only or name in only}
    indices = tuple(range(1, steps + 1))
    curves = {name: Curve(steps=indices, values=tuple(map(value, indices))) for name, value in kept.items()}
    found = RunFacts(
        source="runs/toy",
        framework=framework,
        num_steps=steps,
        first_step=1,
        last_step=steps,
        settings=FLOAT32 if settings is None else settings,
        curves=curves,
    )
    return Facts(run=known(found))


def rounding(step: int) -> float:
    """float32 on a CPU."""
    return 1.2e-7 * jitter(step)


def coarse(step: int) -> float:
    """16 bits."""
    return 0.011 * jitter(step)


def behind_from(last_good: int, usual: Callable[[int], float] = rounding) -> Callable[[int], float]:
    """Weights that stay as they were after step LAST_GOOD."""
    return lambda step: usual(step) + (0.05 * (step - last_good) * jitter(step) if step > last_good else 0.0)


def late_by(steps: int, usual: Callable[[int], float] = rounding) -> Callable[[int], float]:
    """Weights that are STEPS steps old."""
    return lambda step: usual(step) + 0.1 * min(steps, step - 1) * jitter(step, 0.1)


HEALTHY = run(rounding)
HEALTHY_16 = run(coarse, settings=BFLOAT16)
FROZEN = run(behind_from(10), moves=False)
PART = run(behind_from(1))
LATE = run(late_by(2))
EVERY_THIRD = run(lambda step: rounding(step) + 0.1 * ((step - 1) % 3))
OTHER_WEIGHTS = run(lambda step: 0.34, training__rollout_log_probs_corr=lambda step: 0.02)
TEMPLATE = run(
    lambda step: 0.2,
    training__rollout_prompt_mismatch=lambda step: 1.0,
    training__rollout_prompt_length_diff=lambda step: 2.0,
)
SPECIAL_TOKEN = run(
    lambda step: 0.05,
    training__rollout_prompt_mismatch=lambda step: 1.0,
    training__rollout_prompt_length_diff=lambda step: -1.0,
)
HOT = FLOAT32 | {"actor_rollout_ref.rollout.temperature": 0.7}
RAW = run(
    lambda step: 0.15,
    settings=HOT,
    rollout_corr__kl=lambda step: -0.02 * jitter(step),
    training__rollout_log_probs_slope=lambda step: 1.43,
    training__rollout_log_probs_corr=lambda step: 0.998,
)
ONE_SIDED = run(
    lambda step: 0.15,
    settings=HOT,
    training__rollout_log_probs_slope=lambda step: 0.7,
    training__rollout_log_probs_corr=lambda step: 0.998,
)
CUT = run(
    lambda step: 0.6,
    rollout_corr__kl=lambda step: 0.6,
    rollout_corr__k3_kl=lambda step: 0.16,
    training__rollout_log_probs_corr=lambda step: 0.95,
)
COARSE_LOGITS = run(lambda step: 4e-4 * (1 + step / 10))
KERNEL = run(lambda step: 0.08 * jitter(step), settings=BFLOAT16)
TWO_DTYPES = run(
    lambda step: 0.002 * jitter(step), settings=FLOAT32 | {"actor_rollout_ref.actor.fsdp_config.dtype": "bfloat16"}
)
BENT = run(
    lambda step: 0.2 * jitter(step),
    settings={},
    framework="verl",
    only=("rollout_corr/k3_kl", "rollout_corr/kl", "rollout_corr/rollout_log_ppl", "actor/entropy",
          "training/rollout_actor_probs_pearson_corr"),
    rollout_corr__rollout_log_ppl=lambda step: 2.9 - 0.02 * step,
    actor__entropy=lambda step: 3.05 - 0.02 * step,
    training__rollout_actor_probs_pearson_corr=lambda step: 0.99,
)  # fmt: skip
"""As verl writes it, without config: training multiplies logits by the temperature that sampling divides them by."""
LIMIT_CHANGED = run(
    lambda step: rounding(step) + (2e-4 * (step - 19) if step >= 20 else 0.0),
    response_length__mean=lambda step: (6.0 if step >= 20 else 5.5) * jitter(step, 0.01),
)
