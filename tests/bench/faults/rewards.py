"""Reward functions that can be gamed, for `custom_reward_function.path`."""

from __future__ import annotations

from typing import Any


def longer_is_better(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """The more is said, the better."""
    return len(solution_str) / 20.0


def says_seven(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """The share of sevens: saying one thing again and again earns most."""
    return solution_str.count("7") / 6.0
