"""What advantage estimators need, and what their advantages are like: rltrain's by its own table, and verl's."""

from __future__ import annotations

from rlcheck.measure.config.rltrain_data import Estimator, estimators

_GROUP = frozenset({"group"})
VERL = {
    "gae": Estimator(frozenset({"critic"}), "whitened"),
    "grpo": Estimator(_GROUP, "grouped"),
    "grpo_vectorized": Estimator(_GROUP, "grouped"),
    "grpo_passk": Estimator(_GROUP, "raw"),
    "rloo": Estimator(_GROUP, "centred"),
    "rloo_vectorized": Estimator(_GROUP, "centred"),
    "reinforce_plus_plus": Estimator(frozenset(), "whitened"),
    "reinforce_plus_plus_baseline": Estimator(_GROUP, "whitened"),
    "remax": Estimator(frozenset({"greedy"}), "raw"),
    "gpg": Estimator(frozenset(), "raw"),
    "opo": Estimator(_GROUP, "raw"),
    "gdpo": Estimator(_GROUP, "raw"),
    "optimal_token_baseline": Estimator(_GROUP, "raw"),
    "tir_optimal_token_baseline": Estimator(_GROUP, "raw"),
}
"""verl's registry, verl/trainer/ppo/core_algos.py (arXiv:2402.03300, 2402.14740, 2501.03262)."""


def needs(name: str, what: str) -> bool:
    """Whether estimator `name` needs `what` (critic, group, greedy); False for one that nobody knows."""
    row = estimators().get(name) or VERL.get(name)
    return row is not None and what in row.needs


def scale(name: str) -> str:
    """Return what its advantages are like: whitened, grouped, centred, raw; "" for one that nobody knows."""
    row = estimators().get(name) or VERL.get(name)
    return "" if row is None else row.scale
