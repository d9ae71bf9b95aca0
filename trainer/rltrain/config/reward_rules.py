"""Rules about rewards: what scores the answers, and under which names. See `rltrain.config.rules`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from rltrain.config.paths import existing
from rltrain.config.schema import RewardRule, RunConfig

# What rltrain.rewards calls the parts of a reward that are no rules.
PART_NAMES = ("custom", "model", "overlong", "failed")


def rewards(config: RunConfig) -> Iterator[str]:
    """Yield what a run could not be scored with."""
    reward, custom = config.reward_model, config.custom_reward_function
    if not reward.rules and custom.path is None and not reward.enable:
        yield (
            "reward_model: nothing scores the responses; give reward_model.rules, e.g. "
            "'reward_model.rules=[{kind: math}]', custom_reward_function.path, or reward_model.enable=true"
        )
    if reward.enable and reward.model.path is None:
        yield "reward_model.model.path: reward_model.enable=true needs the directory of a sequence classifier"
    yield from existing("custom_reward_function.path", custom.path)
    if custom.path is not None and os.path.exists(custom.path) and not custom.path.endswith(".py"):
        yield f"custom_reward_function.path: {custom.path} is no Python file; its name must end in .py"
    yield from _part_names(reward.rules)
    for number, rule in enumerate(reward.rules):
        yield from _reward_rule(f"reward_model.rules.{number}", rule)
    overlong = reward.overlong_buffer
    if overlong.enable and not 0 < overlong.len <= config.data.max_response_length:
        yield (
            f"reward_model.overlong_buffer.len: {overlong.len} must be between 1 and data.max_response_length="
            f"{config.data.max_response_length}"
        )


def _part_names(rules: Sequence[RewardRule]) -> Iterator[str]:
    """Metrics are distinguished by the names of what they measure."""
    names = [rule.name or rule.kind for rule in rules]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"reward_model.rules: {names.count(name)} rules are named '{name}'; give each a `name` of its own"
    for number, name in enumerate(names):
        if name in PART_NAMES:
            yield f"reward_model.rules.{number}.name: '{name}' names another part of the reward; choose another"


def _reward_rule(key: str, rule: RewardRule) -> Iterator[str]:
    if rule.kind in ("format", "regex") and not rule.pattern:
        yield f"{key}.pattern: kind={rule.kind} needs a regular expression"
    if rule.pattern is None:
        return
    if rule.kind not in ("format", "regex"):
        yield f"{key}.pattern: kind={rule.kind} takes no pattern"
    try:
        re.compile(rule.pattern)
    except re.error as error:
        yield f"{key}.pattern: not a regular expression: {error}"
