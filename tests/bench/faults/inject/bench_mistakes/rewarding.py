"""Mistakes in rewards and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench_mistakes.registry import Counter, mistake, wrap


@mistake("rltrain.controller.reward_manager")
def reward_flipped(module: Any, step: int = 1) -> None:
    """The sum of the reward's parts is taken off instead of added, from the STEP-th batch on."""
    calls = Counter()

    def combine(real: Any, results: Sequence[Any], samples: Any, mask: Any) -> Any:
        # The audit scores one sample again after each step: that is no batch.
        late = (calls() if len(samples) > 1 else calls.value) >= step
        return real([replace(r, score=-r.score) for r in results] if late else results, samples, mask)

    wrap(module, "combine", combine)


@mistake("rltrain.rewards.rules")
def reward_constant(module: Any, value: float) -> None:
    """The rule gives everything the same."""
    module.RULES["digits"] = lambda said, truth, rule: value


@mistake("rltrain.controller.reward_manager")
def reward_turns_constant(module: Any, value: float, step: int) -> None:
    """From the STEP-th batch on the scorer fails and gives its default."""
    calls = Counter()

    def combine(real: Any, results: Sequence[Any], samples: Any, mask: Any) -> Any:
        late = (calls() if len(samples) > 1 else calls.value) >= step
        return real([replace(r, score=value) for r in results] if late else results, samples, mask)

    wrap(module, "combine", combine)


@mistake("rltrain.controller.reward_manager")
def rewards_of_neighbours(module: Any) -> None:
    """Off by one: each answer gets the reward of the one before."""

    def combine(real: Any, results: list[Any], samples: Any, mask: Any) -> Any:
        return real([*results[-1:], *results[:-1]], samples, mask)

    wrap(module, "combine", combine)


@mistake("rltrain.controller.algorithm")
def advantages_flipped(module: Any) -> None:
    """Rewards are right, what is learnt from them is the opposite."""

    def compute(real: Any, *args: Any, **kwargs: Any) -> Any:
        advantages, returns = real(*args, **kwargs)
        return -advantages, returns

    wrap(module, "compute_advantages", compute)


@mistake("rltrain.algos.advantages.gae")
def gae_not_whitened(module: Any) -> None:
    """Advantages stay as they come."""
    wrap(module, "whiten", lambda real, values, mask: values)


@mistake("rltrain.algos.advantages.grpo")
def grpo_not_divided(module: Any) -> None:
    """Centred, not divided by the group's standard deviation."""

    def grpo(real: Any, inputs: Any) -> Any:
        return real(replace(inputs, norm_adv_by_std_in_grpo=False))

    _estimator("grpo", module, grpo)


@mistake("rltrain.algos.advantages.grpo")
def grpo_not_centred(module: Any) -> None:
    """The reward itself is the advantage: nothing is compared."""

    def grpo(real: Any, inputs: Any) -> Any:
        spread = inputs.spread(inputs.scores)
        return spread, spread

    _estimator("grpo", module, grpo)


def _estimator(name: str, module: Any, around: Any) -> None:
    # The package's table is made of the module's function right after the module is imported.
    wrap(module, name, around)
