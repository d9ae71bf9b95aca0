"""Made-up runs: curves of a healthy one, with noise, and what tests change in them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.run import AuditStep, Curve, RunFacts

ACTOR = "actor_rollout_ref.actor"
SETTINGS: dict[str, Any] = {
    f"{ACTOR}.optim.lr": 1e-3,
    f"{ACTOR}.entropy_coeff": 0.03,
    f"{ACTOR}.grad_clip": 1.0,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.fsdp_config.dtype": "float32",
    "algorithm.adv_estimator": "gae",
    "critic.optim.lr": 1e-3,
    "critic.grad_clip": 1.0,
    "toy.num_digits": 4,
    "trainer.n_gpus_per_node": 2,
    "trainer.nnodes": 1,
}
"""Of a small run of rltrain."""


def curve(values: Iterable[float], first: int = 1) -> Curve:
    """VALUES at the steps from FIRST on."""
    there = tuple(float(value) for value in values)
    return Curve(steps=tuple(range(first, first + len(there))), values=there)


def healthy_curves(steps: int = 40, seed: int = 0) -> dict[str, Curve]:
    """What a healthy run of STEPS steps logs: the reward rises, the entropy falls, the critic learns."""
    chance = random.Random(seed)

    def noisy(level: Callable[[float], float], share: float = 0.1) -> list[float]:
        return [level(step / steps) * (1 + share * chance.gauss(0, 1)) for step in range(steps)]

    reward = [min(0.97, 0.05 + 0.9 / (1 + math.exp(8 * (0.45 - step / steps)))) for step in range(steps)]
    reward = [value + 0.01 * chance.gauss(0, 1) for value in reward]
    entropy, policy = noisy(lambda t: 2.9 - 2.2 * t, 0.01), [0.02 * chance.gauss(0, 1) for _ in range(steps)]
    kl = noisy(lambda t: 0.001 + 0.1 * t, 0.05)
    loss = [p - 0.03 * e + 0.001 * k for p, e, k in zip(policy, entropy, kl, strict=True)]
    made: dict[str, Sequence[float]] = {
        "actor/entropy": entropy,
        "actor/entropy_loss": entropy,
        "actor/kl_loss": kl,
        "actor/loss": loss,
        "actor/pg_loss": policy,
        "actor/grad_norm": [value * math.exp(0.4 * chance.gauss(0, 1)) for value in noisy(lambda t: 0.6 + 0.6 * t)],
        "actor/lr": [1e-3] * steps,
        "actor/optimizer_steps": [4.0] * steps,
        "actor/skipped_steps": [0.0] * steps,
        "actor/ppo_kl": [0.005 + 0.003 * chance.gauss(0, 1) for _ in range(steps)],
        "actor/pg_clipfrac": [abs(value) for value in noisy(lambda t: 0.05, 0.4)],
        "actor/shard_loss_spread": [abs(value) for value in noisy(lambda t: 0.03, 0.4)],
        "critic/score/mean": reward,
        "critic/score/max": [1.0] * steps,
        "critic/score/min": [0.0] * steps,
        "critic/returns/mean": reward,
        "critic/returns/max": [1.0] * steps,
        "critic/returns/min": [0.0] * steps,
        "critic/values/mean": [0.97 * value + 0.01 * chance.gauss(0, 1) for value in reward],
        "critic/vf_explained_var": [-0.6, -0.1, *noisy(lambda t: 0.02 + 0.3 * t, 0.3)[2:]],
        "critic/vf_loss": noisy(lambda t: 0.02),
        "critic/grad_norm": noisy(lambda t: 0.15, 0.3),
        "critic/lr": [1e-3] * steps,
        "timing_s/step": noisy(lambda t: 1.0, 0.05),
        "timing_s/gen": noisy(lambda t: 0.4, 0.05),
        "timing_s/update_actor": noisy(lambda t: 0.4, 0.05),
        "timing_s/update_weights": noisy(lambda t: 0.05),
        "timing_s/reward": noisy(lambda t: 0.05),
        "timing_s/grad_comm": noisy(lambda t: 0.05),
        "perf/throughput": noisy(lambda t: 3000.0, 0.05),
        "perf/run_memory_used_gb": [2.2 + 0.1 * min(1.0, step / steps * 3) for step in range(steps)],
        "response_length/mean": noisy(lambda t: 6.0, 0.01),
        "training/policy_staleness/max": [0.0] * steps,
    }
    return {name: curve(values) for name, values in made.items()}


def healthy_audit(steps: int = 40) -> tuple[AuditStep, ...]:
    """Audit records that agree with themselves."""
    return tuple(
        AuditStep(
            step=step,
            response_tokens=3000 + step,
            loss_tokens=3000.0 + step,
            optimizer_steps=4 * step,
            parameter_hashes=(f"a{step}", f"b{step}"),
            shard_hashes=(f"c{step}", f"d{step}"),
            shard_losses=(0.1 * step, 0.2 * step),
            reward=0.5,
            reward_again=0.5,
            recomputed_max_diff=1e-6,
        )
        for step in range(1, steps + 1)
    )


def made_run(
    curves: dict[str, Iterable[float] | None] | None = None,
    *,
    steps: int = 40,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    **fields: Any,
) -> Facts:
    """A healthy run with some curves replaced (None: not logged), settings added (None: not said), fields changed."""
    there = healthy_curves(steps, seed)
    for name, values in (curves or {}).items():
        there.pop(name, None)
        if values is not None:
            there[name] = curve(values)
    said = {key: value for key, value in {**SETTINGS, **(settings or {})}.items() if value is not ...}
    whole = RunFacts(
        source="runs/made",
        framework="rltrain",
        outcome="finished",
        num_steps=steps,
        first_step=1,
        last_step=steps,
        total_steps=steps,
        settings=said,
        curves=there,
        audit=known(healthy_audit(steps)),
    )
    return Facts(run=known(msgspec.structs.replace(whole, **fields)))


def only(*names: str, **fields: Any) -> Facts:
    """A run of another framework that logs NAMES of the healthy curves, and has no config."""
    there = healthy_curves()
    run = RunFacts(
        source="runs/other",
        framework="trl",
        num_steps=40,
        first_step=1,
        last_step=40,
        curves={name: there[name] for name in names},
    )
    return Facts(run=known(msgspec.structs.replace(run, **fields)))
