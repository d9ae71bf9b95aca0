"""What dynamic sampling compares within a group: accuracy, or a named part of the reward; never terms of length."""

from __future__ import annotations

from collections.abc import Sequence

from rltrain.config.schema import RewardRule, RunConfig
from rltrain.core.batch import Sample
from rltrain.core.errors import UserError
from rltrain.rewards.spec import CUSTOM, FAILED, MODEL

ACCURACY, SCORE = "acc", "score"
KEY = "algorithm.filter_groups.metric"


def filter_metric(samples: Sequence[Sample], config: RunConfig) -> list[float]:
    """`algorithm.filter_groups.metric` of each of SAMPLES, which have been scored.

    Raises:
        UserError: a sample does not have the part that the key names.
    """
    wanted, default = config.algorithm.filter_groups.metric, config.reward_model.default_score
    if any(FAILED in sample.reward_parts for sample in samples):
        assert default is not None
        scored = [sample for sample in samples if FAILED not in sample.reward_parts]
        known = iter(filter_metric(scored, config))
        return [default if FAILED in sample.reward_parts else next(known) for sample in samples]
    if wanted == ACCURACY:
        return [_accuracy(sample, config.reward_model.rules) for sample in samples]
    if wanted == SCORE:
        return [_score(sample, config) for sample in samples]
    for sample in samples:
        if wanted not in sample.reward_parts:
            raise UserError(
                f"{KEY}: '{wanted}' is no part of the reward of sample {sample.uid} (data_source "
                f"'{sample.data_source}'); it has {', '.join(sorted(sample.reward_parts))}"
            )
    return [sample.reward_parts[wanted] for sample in samples]


def _accuracy(sample: Sample, rules: Sequence[RewardRule]) -> float:
    """What says whether the answer is right: the function's own `acc`, else rules that know the ground truth.

    Where there are neither, the function's score, or else the reward model's.
    """
    parts = sample.reward_parts
    for name in (f"{CUSTOM}/{ACCURACY}", ACCURACY):
        if name in parts:
            return parts[name]
    truths = [parts[name] for rule in rules if rule.kind != "format" and (name := rule.name or rule.kind) in parts]
    if truths:
        return sum(truths)
    for name in (CUSTOM, MODEL):
        if name in parts:
            return parts[name]
    raise UserError(
        f"{KEY}: nothing says whether sample {sample.uid} (data_source '{sample.data_source}') is right; name one of "
        f"{', '.join(sorted(parts))}"
    )


def _score(sample: Sample, config: RunConfig) -> float:
    """The weighted sum of the parts, as in the reward, without the penalty for length."""
    weights = {rule.name or rule.kind: rule.weight for rule in config.reward_model.rules}
    weights |= {CUSTOM: config.custom_reward_function.weight, MODEL: config.reward_model.weight}
    return sum(weight * sample.reward_parts[name] for name, weight in weights.items() if name in sample.reward_parts)
