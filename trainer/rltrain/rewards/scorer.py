"""Scores one sample with every rule and function that applies to it. Runs in a child process."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rltrain.rewards.custom import BadReward, CustomFunction
from rltrain.rewards.math_reward import MathRule
from rltrain.rewards.request import RewardRequest, RewardResult
from rltrain.rewards.rules import RULES, needs_truth, text_of
from rltrain.rewards.spec import CUSTOM, RuleSpec, ScorerSpec

Score = Callable[[RewardRequest], tuple[float, dict[str, float]]]
# Share of the time limit that the math rule gives to one expression: ground truth and response fit below the limit.
MATH_SHARE = 0.4


@dataclass(frozen=True)
class Part:
    """One rule or function."""

    name: str
    shown: str
    weight: float
    data_sources: tuple[str, ...] | None
    score: Score


class Scorer:
    """All parts of SPEC, loaded.

    Raises:
        UserError: a part cannot be loaded.
    """

    def __init__(self, spec: ScorerSpec) -> None:
        self._seed = spec.seed
        # A function may change the working directory; each call starts in the one of the run.
        self._home = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
        shown = spec.part_names
        self._parts = [
            Part(rule.name, shown[i], rule.weight, rule.data_sources, _rule_score(rule, spec.timeout_s))
            for i, rule in enumerate(spec.rules)
        ]
        if spec.custom is not None:
            with contextlib.suppress(ImportError):  # before the first call, so that no call draws from an unseeded one
                importlib.import_module("numpy.random")
            self._parts.append(Part(CUSTOM, shown[-1], spec.custom.weight, None, CustomFunction(spec.custom).score))

    def score(self, request: RewardRequest, on_part: Callable[[int], None]) -> RewardResult:
        """The result for one sample; ON_PART hears the number of each part before it starts.

        Raises:
            BadReward: a part gave no reward.
        """
        started = time.perf_counter()
        total, parts = 0.0, dict[str, float]()
        for number, part in enumerate(self._parts):
            if part.data_sources is not None and request.data_source not in part.data_sources:
                continue
            on_part(number)
            if part.name == CUSTOM:
                self._settle(request)
            try:
                value, others = part.score(request)
            except BadReward as error:
                raise BadReward(f"reward {part.shown}: {error}") from None
            total += part.weight * value
            parts[part.name] = value
            parts |= {f"{part.name}/{key}": other for key, other in others.items()}
        return RewardResult(total, parts, time.perf_counter() - started)

    def _settle(self, request: RewardRequest) -> None:
        """Undo what a user's function left behind: a sample's reward must not depend on its neighbours."""
        os.fchdir(self._home)
        key = f"{self._seed}|{request.uid}|{request.sample}|{request.solution_str}"
        seed = int.from_bytes(hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=4).digest(), "big")
        random.seed(seed)
        # Torch only where the user's file has imported it: loading it takes seconds.
        for module, name in (("numpy.random", "seed"), ("torch", "manual_seed")):
            library: Any = sys.modules.get(module)
            if library is not None:
                vars(library)[name](seed)


def _rule_score(rule: RuleSpec, timeout_s: float) -> Score:
    if rule.kind == "math":
        compare = MathRule(MATH_SHARE * timeout_s).score
    else:
        function = RULES[rule.kind]

        def compare(solution: str, truth: str) -> tuple[float, dict[str, float]]:
            return function(solution, truth, rule), {}

    uses_truth = needs_truth(rule)

    def score(request: RewardRequest) -> tuple[float, dict[str, float]]:
        try:
            return compare(request.solution_str, text_of(request.ground_truth) if uses_truth else "")
        except ValueError as error:
            raise BadReward(f"{error}") from None

    return score
