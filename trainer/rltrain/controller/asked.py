"""Of which answers the engine is asked for its log-probabilities: they cost it up to half of the time of generating."""

from __future__ import annotations

import random

from rltrain.config.schema import RunConfig
from rltrain.workers.fsdp.rank import derive_seed

ONE_IN = 16
AT_LEAST = 32
"""Answers whose log-probabilities show how far engine and actor are apart, where nothing learns from them."""


def asked_rows(config: RunConfig, count: int, step: int, first: str) -> frozenset[int]:
    """Rows of COUNT answers that are to come with log-probabilities: the same ones for the same run, step and prompts.

    Args:
        config: of the run: all rows where the algorithm reads them or the config says so, none where it says not to.
        count: of answers.
        step: of training.
        first: uid of the first prompt.
    """
    asked = config.actor_rollout_ref.rollout.calculate_log_probs
    correction = config.algorithm.rollout_correction
    if asked is False:
        return frozenset()
    if asked or correction.rollout_is or correction.rollout_rs or correction.bypass_mode:
        return frozenset(range(count))
    drawn = random.Random(derive_seed(config.trainer.seed, "log_probs", first, step))
    return frozenset(drawn.sample(range(count), min(count, max(AT_LEAST, -(-count // ONE_IN)))))
