"""RUN030 to RUN041 and RUN050 to RUN060: a run on which each fires, and one on which it stays quiet."""

from __future__ import annotations

import msgspec

from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.run import AuditStep
from tests.checks.run.synthetic import ACTOR, curve, healthy_audit, healthy_curves, made_run

GOOD = made_run()
_THERE = healthy_curves()
_ENTROPY, _KL, _POLICY = (_THERE[name].values for name in ("actor/entropy_loss", "actor/kl_loss", "actor/pg_loss"))
FLAT = [0.05 + 0.001 * (step % 3) for step in range(40)]
FALLING = [max(0.0, 0.4 - 0.05 * step) for step in range(40)]


def loss_with(entropy: float, kl: float) -> list[float]:
    """The loss as it is with these coefficients."""
    return [p + entropy * e + kl * k for p, e, k in zip(_POLICY, _ENTROPY, _KL, strict=True)]


def at(name: str, step: int, value: float) -> list[float]:
    """The healthy curve NAME with VALUE at STEP."""
    values = list(_THERE[name].values)
    values[step - 1] = value
    return values


def audit(**changes: object) -> tuple[AuditStep, ...]:
    """Healthy records, each with these changes."""
    return tuple(msgspec.structs.replace(one, **changes) for one in healthy_audit())


FAST = made_run(
    {
        "actor/lr": [1.0] * 40,
        "actor/ppo_kl": [8.0, 3.0, *[0.4] * 38],
        "actor/pg_clipfrac": [0.7] * 40,
        "actor/entropy": [2.9, *[0.1] * 39],
        "critic/score/mean": FLAT,
    }
)
SPIKE = made_run(
    {
        "actor/grad_norm": at("actor/grad_norm", 12, 900.0),
        "critic/score/mean": [0.3 + 0.001 * (step % 4) if step < 12 else 0.02 for step in range(40)],
    },
    settings={f"{ACTOR}.grad_clip": None},
)
NEGATIVE = made_run(
    {"actor/loss": loss_with(0.03, 0.001), "critic/score/mean": FLAT}, settings={f"{ACTOR}.entropy_coeff": -0.03}
)
NO_ENTROPY = made_run({"actor/entropy": [2.9 * 0.7**step for step in range(40)], "critic/score/mean": FLAT})
DISSOLVES = made_run({"actor/entropy": [0.4 + 0.05 * step for step in range(40)], "critic/score/mean": FALLING})
PUSHED = made_run({"actor/loss": loss_with(-0.03, -0.001)})
KL_RISES = made_run({"actor/kl_loss": [0.001 * 1.3**step for step in range(40)]})
CLIPPED = made_run({"actor/pg_clipfrac": [0.4] * 40})
DEAF = made_run({"critic/values/mean": [0.02] * 40, "critic/vf_explained_var": [-0.05] * 40})
UNMOVED_CRITIC = made_run({"critic/lr": [0.0] * 40})
CHARGED_NOT = made_run(settings={f"{ACTOR}.kl_loss_coef": -0.001})
SAME_ROWS = made_run(audit=known(audit(shard_hashes=("c", "c"))))
FROZEN = made_run(audit=known(audit(parameter_hashes=("a", "b"))))
RATE_0 = made_run({"actor/lr": [0.0] * 40}, audit=absent("trainer.audit is off"))
RATE_ENDS = made_run({"actor/lr": [1e-3] * 8 + [0.0] * 32})
PILED_UP = made_run(
    {
        "actor/grad_norm": [0.15 * (1 + 0.15 * step) for step in range(40)],
        "critic/score/mean": [0.03 + 0.001 * step for step in range(40)],
    }
)
REFERENCE_MOVES = made_run({"actor/kl_loss": [0.006 + 0.002 * (step % 2) for step in range(40)], "actor/loss": None})
OLD_IS_NEW = made_run({"actor/ppo_kl": [0.0] * 40, "actor/pg_clipfrac": [0.0] * 40})
HELD_AT_ONCE = made_run({"actor/optimizer_steps": [1.0] * 40})
SILENT = made_run(outcome="running", total_steps=100, idle_s=known(4000.0))
DIED = made_run(outcome="failed", total_steps=100, error="rank 1 was killed")
SLOWER = made_run({"perf/throughput": [3000.0] * 20 + [1500.0] * 20})
REWARDS_SLOW = made_run({"timing_s/reward": [0.5] * 40, "timing_s/step": [1.4] * 40})
VALIDATES_OFTEN = made_run({"timing_s/testing": [2.0] * 40}, settings={"trainer.test_freq": 1})
ONE_SLOW = made_run(ranks={"timing_s/update_actor": (curve([0.5] * 9), curve([1.1] * 9), curve([0.5] * 9))})
WAITS = made_run({"timing_s/grad_comm": [0.9] * 40, "timing_s/update_actor": [1.0] * 40})
LEAK = made_run({"perf/run_memory_used_gb": [2.0 + 0.05 * step for step in range(40)]})
STALE = made_run({"training/policy_staleness/max": [0.0] * 10 + [2.0] * 30})
_SIDES = {"perf/training_idle": [0.02] * 40, "perf/rollout_idle": [0.3] * 40}
STARVED = made_run({**_SIDES, "perf/training_idle": [0.7] * 40})
BOTH_WORK = made_run({**_SIDES})
_BOUND_4 = {"algorithm.max_staleness": 4}
_AGES = {"training/policy_staleness/max": [4.0] * 40, "training/policy_staleness/mean": [3.9] * 40}
AT_BOUND = made_run({**_AGES, **_SIDES}, settings=_BOUND_4)
AT_BOUND_AND_WAITS = made_run({**_AGES, "perf/training_idle": [0.4] * 40}, settings=_BOUND_4)
FRESHER = made_run({**_AGES, "training/policy_staleness/mean": [2.1] * 40}, settings=_BOUND_4)
CUTS = made_run({"rollout_corr/rollout_rs_masked_fraction": [0.1] * 10 + [0.8] * 30})
CUTS_LITTLE = made_run({"rollout_corr/rollout_rs_masked_fraction": [0.02] * 40})
TOKENS_LOST = made_run(audit=known(audit(loss_tokens=2500.0)))
FORGETS = made_run(audit=known(audit(adam_steps=0)))
DROPS_OUT = made_run(audit=known(audit(recomputed_max_diff=0.5)))
OTHER_REFERENCE = made_run({"actor/ref_kl": [0.16 + 0.001 * step for step in range(40)]})
_NORMS = {f"actor/grad_norm_rank_{end}": [size] * 40 for end, size in (("min", 1.4), ("max", 1.6), ("of_min", 1.0))}
ALL_SEND = made_run({**_NORMS, "actor/grad_reduce_error": [1e-8] * 40})
SILENT_RANK = made_run({**_NORMS, "actor/grad_norm_rank_min": [0.0] * 40})
LOST_ON_THE_WIRE = made_run({**_NORMS, "actor/grad_reduce_error": [0.7] * 40})
OTHER_WEIGHT = made_run({"actor/loss": loss_with(-0.03, 0.01)})
PINNED = made_run(
    {"actor/kl_loss": [1e-5] * 40, "actor/loss": None, "critic/score/mean": FLAT},
    settings={f"{ACTOR}.kl_loss_coef": 10},
)
_OWN = list(_THERE["actor/entropy"].values)

CASES: dict[str, tuple[Facts, Facts]] = {
    "RUN030": (FAST, GOOD),
    "RUN031": (SPIKE, GOOD),
    "RUN032": (made_run({"actor/grad_norm": [0.0] * 40}), GOOD),
    "RUN033": (NEGATIVE, GOOD),
    "RUN034": (NO_ENTROPY, GOOD),
    "RUN035": (DISSOLVES, GOOD),
    "RUN036": (PUSHED, GOOD),
    "RUN037": (KL_RISES, GOOD),
    "RUN038": (CLIPPED, GOOD),
    "RUN039": (DEAF, GOOD),
    "RUN040": (SAME_ROWS, GOOD),
    "RUN041": (FROZEN, GOOD),
    "RUN050": (SILENT, GOOD),
    "RUN051": (SLOWER, GOOD),
    "RUN052": (REWARDS_SLOW, GOOD),
    "RUN053": (ONE_SLOW, GOOD),
    "RUN054": (LEAK, GOOD),
    "RUN055": (STALE, GOOD),
    "RUN056": (TOKENS_LOST, GOOD),
    "RUN057": (DROPS_OUT, made_run({"actor/log_ratio_before_step": [1e-6] * 40})),
    "RUN058": (OTHER_REFERENCE, made_run({"actor/ref_kl": [1e-9, *[0.03] * 39]})),
    "RUN059": (SILENT_RANK, ALL_SEND),
    "RUN060": (made_run({"actor/entropy_loss": [4 * value for value in _OWN]}), made_run({"actor/entropy_loss": _OWN})),
    "RUN061": (STARVED, BOTH_WORK),
    "RUN062": (CUTS, CUTS_LITTLE),
    "RUN063": (AT_BOUND, FRESHER),
}

OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "RUN030": (made_run({"actor/ppo_kl": [0.3] * 40, "critic/score/mean": FALLING}),),
    "RUN032": (
        PILED_UP,
        made_run({"actor/grad_norm": [0.1 * 1.15**step for step in range(40)]}, settings={f"{ACTOR}.grad_clip": None}),
    ),
    "RUN036": (CHARGED_NOT, REFERENCE_MOVES, OTHER_WEIGHT, PINNED),
    "RUN038": (OLD_IS_NEW, HELD_AT_ONCE),
    "RUN039": (UNMOVED_CRITIC,),
    "RUN041": (RATE_0, RATE_ENDS),
    "RUN050": (DIED,),
    "RUN052": (VALIDATES_OFTEN,),
    "RUN053": (WAITS,),
    "RUN056": (FORGETS,),
    "RUN057": (made_run({"actor/log_ratio_before_step": [0.3] * 40}),),
    "RUN058": (made_run({"actor/kl_loss": [0.2] * 40, "actor/ref_kl": None}),),
    "RUN059": (LOST_ON_THE_WIRE,),
    "RUN061": (made_run({**_SIDES, "perf/rollout_idle": [0.6] * 40}),),
    "RUN062": (made_run({"rollout_corr/rollout_is_eff_sample_size": [0.2] * 40}),),
    "RUN063": (AT_BOUND_AND_WAITS,),
}
