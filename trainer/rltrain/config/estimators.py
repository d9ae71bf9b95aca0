"""Advantage estimators, one row each: all that is known of one outside of its formula. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Need = Literal["critic", "group", "greedy"]
"""A critic's values; several answers to each prompt; the reward of the greedy answer to each prompt."""
Scale = Literal["whitened", "grouped", "centred", "raw"]
"""Of advantages: mean 0 and standard deviation 1 over tokens; the same within a group, bounded by its size; centred in
a group and not divided; none of these."""


@dataclass(frozen=True)
class Estimator:
    """`algorithm.adv_estimator=NAME`, which is the function NAME of `rltrain.algos.advantages.NAME`."""

    name: str
    needs: frozenset[Need]
    scale: Scale


def _row(name: str, *needs: Need, scale: Scale) -> tuple[str, Estimator]:
    return name, Estimator(name, frozenset(needs), scale)


ESTIMATORS = dict((
    _row("gae", "critic", scale="whitened"),
    _row("grpo", "group", scale="grouped"),
    _row("rloo", "group", scale="centred"),
    _row("reinforce_plus_plus", scale="whitened"),
    _row("reinforce_plus_plus_baseline", "group", scale="whitened"),
    _row("remax", "greedy", scale="raw"),
))  # fmt: skip


def needing(*needs: Need) -> tuple[str, ...]:
    """Names of those that need just NEEDS."""
    return tuple(row.name for row in ESTIMATORS.values() if row.needs == frozenset(needs))


def has_need(estimator: str, need: Need) -> bool:
    """Whether ESTIMATOR has NEED."""
    return need in ESTIMATORS[estimator].needs
