"""Rewards: rules, a reward model, a user's own function, and how they are combined."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rltrain.config.schema.base import Section
from rltrain.config.schema.model import FsdpConfig, ModelConfig


class RewardRule(Section):
    """One rule of `reward_model.rules`. rltrain's own."""

    kind: Literal["exact", "digits", "math", "gsm8k", "format", "regex"]
    """`digits`: share of positions that are right; `math`: math-verify; `format`: `pattern` matches the whole response;
    `regex`: it is found, and its first group, where it has one, is the ground truth."""
    name: str | None = None
    """In metrics; null: the kind. Two rules of one kind need names."""
    weight: float = 1.0
    pattern: str | None = None
    """Regular expression, for `format` and `regex`; `.` matches line breaks too."""
    method: Literal["strict", "flexible"] = "strict"
    """For `gsm8k`: the number after `#### `, or the last number anywhere."""
    data_sources: tuple[str, ...] | None = None
    """Sources that this rule scores; null: all."""


class OverlongBufferConfig(Section):
    """`reward_model.overlong_buffer`: DAPO's soft punishment of long responses."""

    enable: bool = False
    len: int = Field(default=0, ge=0)
    """Tokens before `data.max_response_length` over which the penalty grows linearly."""
    penalty_factor: float = Field(default=1.0, ge=0)


class RewardModelConfig(Section):
    """`reward_model`: the model (`enable`), the rules, and limits for both."""

    enable: bool = False
    """Score with a sequence-classification model that has its own tokenizer and template."""
    model: ModelConfig = ModelConfig()
    fsdp_config: FsdpConfig = FsdpConfig()
    weight: float = 1.0
    """Of the model's score in the sum."""
    micro_batch_size_per_gpu: int = Field(default=8, gt=0)
    max_length: int | None = Field(default=None, gt=0)
    """Tokens; longer texts are cut from the left, counted and warned of. Null: the model's own limit."""
    rules: tuple[RewardRule, ...] = ()
    overlong_buffer: OverlongBufferConfig = OverlongBufferConfig()
    timeout_s: float = Field(default=30.0, gt=0)
    """Longest time that one call of a rule or function may take for one sample."""
    max_retries: int = Field(default=2, ge=0)
    """How often a sample is scored again whose rule or function raised, hung or died. rltrain's own."""
    default_score: float | None = None
    """Score of a sample that gave no reward on any try, counted in `reward/failed`; null: the run ends.
    rltrain's own."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Longest time that loading the rules and the user's file may take."""
    rescore: bool | None = None
    """Score answers a second time, for checks that training does not need: validation's `val/reward/shuffled` and
    `val/reward/best_constant`, and one sample of each step for the audit. Null: where rules score alone, and none of
    them is `math`, which takes milliseconds."""
    num_processes: int = Field(default=1, gt=0)
    """Processes that compute rules and functions."""


class CustomRewardFunctionConfig(Section):
    """`custom_reward_function`: `name(data_source, solution_str, ground_truth, extra_info=None)` in the file `path`.

    The function may be `async`: each call is then awaited.
    """

    path: str | None = None
    name: str = "compute_score"
    weight: float = 1.0
    reward_kwargs: dict[str, Any] = {}
