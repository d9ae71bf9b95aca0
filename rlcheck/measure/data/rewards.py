"""What the configured reward wants of a row: its source covered, a ground truth that it can use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rlcheck.facts.config import ConfigFacts
from rlcheck.tables import table


@dataclass(frozen=True)
class Reward:
    """For `rlcheck/remote/data/truths.py`, and in words."""

    rules: tuple[dict[str, Any], ...] = ()
    dispatch: dict[str, str] | None = None
    prefixes: dict[str, str] | None = None
    scores_all: bool = True
    words: str = ""
    sources: tuple[str, ...] = ()
    """What it scores, where that is a list."""


def reward_of(run: ConfigFacts | None) -> Reward:
    """The reward of RUN; without a config nothing is known of it."""
    if run is None:
        return Reward()
    reward = run.spec.reward
    if reward.function_path:
        return Reward(words=f"the function {reward.function_name} in {reward.function_path}")
    if run.spec.reward_model is not None:
        return Reward(words="a reward model")
    if run.framework == "verl":
        rules = table("verl_rewards", dict[str, Any])
        sources = (*rules["dispatch"], *(f"{prefix}…" for prefix in rules["prefixes"]))
        words = "verl's own default_compute_score, by data source"
        return Reward((), rules["dispatch"], rules["prefixes"], scores_all=False, words=words, sources=sources)
    if not reward.rules:
        return Reward()
    own = tuple(_rule(rule) for rule in reward.rules)
    named = tuple(source for rule in own for source in rule["data_sources"] or ())
    return Reward(own, scores_all=False, words="the rules " + ", ".join(r["name"] for r in own), sources=named)


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    kind = str(rule.get("kind") or "")
    sources = rule.get("data_sources")
    return {
        "kind": kind,
        "name": str(rule.get("name") or kind),
        "data_sources": None if sources is None else [str(source) for source in sources],
        "needs": kind != "format" and not (kind == "regex" and not _has_group(str(rule.get("pattern") or ""))),
    }


def _has_group(pattern: str) -> bool:
    """Whether a regex rule compares what it finds with the ground truth; a broken pattern is the config's fault."""
    try:
        return re.compile(pattern).groups > 0
    except re.error:
        return False
