"""Who reads old log-probabilities before the update, in one place: where nobody does, the update's own pass gives them.

With one optimizer step an iteration the policy that is updated is the one that would be read before: its own
log-probabilities are the old ones, and the ratio is exactly 1, with a gradient. A pass over all rows is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rltrain.config.batch_plan import BatchPlan
from rltrain.config.schema import RunConfig

READERS: Mapping[str, Callable[[RunConfig], bool]] = {
    "steps after the first, whose policy has moved": lambda c: BatchPlan.of(c).optimizer_steps_per_iteration > 1,
    "the KL in the reward": lambda c: c.algorithm.use_kl_in_reward,
    "the weights of the rollout correction": lambda c: c.algorithm.rollout_correction.rollout_is is not None,
    "the rejection of the rollout correction": lambda c: c.algorithm.rollout_correction.rollout_rs is not None,
    "bypass_mode, which takes the engine's": lambda c: c.algorithm.rollout_correction.bypass_mode,
}
"""By what it is, whether a resolved config has it. Everything else that reads them comes after the update: metrics of
the drift, of the KL to the reference and of the entropy, the audit, the capsule."""


def update_reads(config: RunConfig, step: int) -> bool:
    """Whether the update of STEP reads old log-probabilities itself. CONFIG is resolved.

    In the critic's own steps there is no update of the actor.
    """
    return step >= config.trainer.critic_warmup and not any(reads(config) for reads in READERS.values())
