"""What a scoring process must compute, taken from the run config. Child processes import it: no torch, no pydantic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrain.core.errors import UserError

if TYPE_CHECKING:
    from rltrain.config.schema import RewardRule, RunConfig

CUSTOM = "custom"
MODEL = "model"
OVERLONG = "overlong"
FAILED = "failed"
"""Part of a sample that was given `reward_model.default_score`."""


@dataclass(frozen=True)
class RuleSpec:
    """One rule."""

    name: str
    kind: str
    weight: float = 1.0
    pattern: str = ""
    method: str = "strict"
    data_sources: tuple[str, ...] | None = None
    """Null: all."""


@dataclass(frozen=True)
class CustomSpec:
    """A user's function."""

    path: str
    name: str
    weight: float
    reward_kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class ScorerSpec:
    """Everything that a scoring process needs to know."""

    rules: tuple[RuleSpec, ...] = ()
    custom: CustomSpec | None = None
    timeout_s: float = 30.0
    """Longest time that one rule or function may take for one sample."""
    seed: int = 1
    max_retries: int = 0
    """How often a sample is scored again that gave no reward."""
    default_score: float | None = None
    """Score of a sample that gave none on any try; None: an error."""

    @property
    def part_names(self) -> tuple[str, ...]:
        """What is computed for each sample, in order."""
        names = tuple(f"rule '{rule.name}'" for rule in self.rules)
        return names if self.custom is None else (*names, f"function '{self.custom.name}' ({self.custom.path})")

    def covers(self, data_source: str) -> bool:
        """Whether anything here scores samples of DATA_SOURCE."""
        return self.custom is not None or bool(self.rules_of(data_source))

    def rules_of(self, data_source: str) -> tuple[RuleSpec, ...]:
        """The rules that score samples of DATA_SOURCE."""
        return tuple(rule for rule in self.rules if rule.data_sources is None or data_source in rule.data_sources)


def spec_of(config: RunConfig) -> ScorerSpec:
    """The rules and the function of CONFIG.

    Raises:
        UserError: nothing gives a reward, two parts of one name, or a pattern that is missing or broken.
    """
    rules = tuple(_rule(rule) for rule in config.reward_model.rules)
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1 or name in (CUSTOM, MODEL, OVERLONG, FAILED):
            raise UserError(
                f"reward_model.rules has more than one part named '{name}': set `name` in each, so that metrics differ"
            )
    section = config.custom_reward_function
    custom = None
    if section.path is not None:
        path = str(Path(section.path).expanduser().resolve())
        custom = CustomSpec(path, section.name, section.weight, dict(section.reward_kwargs))
    if not rules and custom is None and not config.reward_model.enable:
        raise UserError(
            "nothing gives a reward: set reward_model.rules, custom_reward_function.path or reward_model.enable"
        )
    reward = config.reward_model
    return ScorerSpec(rules, custom, reward.timeout_s, config.trainer.seed, reward.max_retries, reward.default_score)


def _rule(rule: RewardRule) -> RuleSpec:
    if rule.kind in ("format", "regex"):
        if not rule.pattern:
            raise UserError(f"reward_model.rules: kind '{rule.kind}' needs `pattern`, a regular expression")
        try:
            re.compile(rule.pattern)
        except re.error as error:
            raise UserError(f"reward_model.rules: pattern {rule.pattern!r} is no regular expression: {error}") from None
    elif rule.pattern is not None:
        raise UserError(f"reward_model.rules: kind '{rule.kind}' takes no `pattern`")
    return RuleSpec(rule.name or rule.kind, rule.kind, rule.weight, rule.pattern or "", rule.method, rule.data_sources)
