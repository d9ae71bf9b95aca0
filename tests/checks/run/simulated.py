"""Simulated runs: a policy that gets better at repeating digits, with rewards, advantages and samples that agree."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean
from typing import Any, NamedTuple

from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts, SampleRow

ROLLOUT = "actor_rollout_ref.rollout"
Reward = Callable[["Answer"], float]


@dataclass(frozen=True)
class Answer:
    """One answer to one prompt."""

    prompt: int
    truth: str
    text: str
    length: int


def digits(answer: Answer) -> float:
    """Share of the places that are right."""
    right = sum(a == b for a, b in zip(answer.text, answer.truth, strict=False))
    return right / max(len(answer.text), len(answer.truth))


def _spread(values: Sequence[float], less: int = 1) -> float:
    """Standard deviation with n - LESS below."""
    centre = fmean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / max(1, len(values) - less))


def whitened(scores: Sequence[float], size: int) -> list[float]:
    """Mean 0, standard deviation 1."""
    centre, spread = fmean(scores), _spread(scores)
    return [(score - centre) / math.sqrt(spread * spread + 1e-8) for score in scores]


def grouped(scores: Sequence[float], size: int) -> list[float]:
    """GRPO's: mean and standard deviation of each group."""
    made: list[float] = []
    for start in range(0, len(scores), size):
        group = scores[start : start + size]
        centre, spread = fmean(group), _spread(group)
        made += [(score - centre) / (spread + 1e-6) for score in group]
    return made


def centred(scores: Sequence[float], size: int) -> list[float]:
    """GRPO's without the division."""
    return [
        score - fmean(scores[start : start + size])
        for start in range(0, len(scores), size)
        for score in scores[start : start + size]
    ]


def raw(scores: Sequence[float], size: int) -> list[float]:
    """No baseline."""
    return list(scores)


@dataclass(frozen=True)
class Policy:
    """What is simulated. `skill`: chance of a right digit by progress (0 to 1); `limit`: tokens of an answer."""

    steps: int = 30
    seed: int = 0
    size: int = 8
    prompts: int = 16
    limit: int = 6
    stated: int = 6
    skill: Callable[[float], float] = lambda progress: 0.1 + 0.85 * progress
    ends: float = 0.15
    """Chance to end after the right number of digits, and at any other place a tenth of it."""
    reward: Callable[[int], Reward] = lambda step: digits
    advantages: Callable[[Sequence[float], int], list[float]] = grouped
    estimator: str = "grpo"
    twins: int = 1
    """Samples of a group that are one and the same."""
    samples: int = 8
    every: int = 1
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


class _Said(NamedTuple):
    """What answers depend on: most policies differ in their rewards and advantages alone."""

    steps: int
    seed: int
    size: int
    prompts: int
    limit: int
    skill: Callable[[float], float]
    ends: float
    twins: int


class _Scored(NamedTuple):
    """What metrics and samples depend on, beside answers."""

    stated: int
    reward: Callable[[int], Reward]
    advantages: Callable[[Sequence[float], int], list[float]]
    samples: int
    every: int


def simulate(policy: Policy, drop: Sequence[str] = (), **curves: Sequence[float] | None) -> Facts:
    """The run of POLICY, without the metrics DROP; CURVES (`__` for a slash) replaced, None: left out."""
    said, scored = (kind(*(getattr(policy, name) for name in kind._fields)) for kind in (_Said, _Scored))
    table, rows = _simulated(said, scored)
    replaced = {name.replace("__", "/"): values for name, values in curves.items()}
    whole = {name: values for name, values in {**table, **replaced}.items() if values is not None and name not in drop}
    return Facts(run=known(RunFacts(
        source="runs/simulated", framework="rltrain", outcome="finished", num_steps=policy.steps, first_step=1,
        last_step=policy.steps, total_steps=policy.steps, settings=_settings(policy),
        curves={name: Curve(steps=tuple(range(1, 1 + len(values))), values=tuple(values))
                for name, values in whole.items()},
        samples=known(tuple(rows)) if rows else absent("the run wrote no samples"),
    )))  # fmt: skip


def _settings(policy: Policy) -> dict[str, Any]:
    return {
        f"{ROLLOUT}.n": policy.size,
        f"{ROLLOUT}.ignore_eos": False,
        f"{ROLLOUT}.min_tokens": 0,
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "data.max_response_length": policy.stated,
        "algorithm.adv_estimator": policy.estimator,
        "algorithm.norm_adv_by_std_in_grpo": True,
        "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
        **policy.settings,
    }


@cache
def _simulated(said: _Said, scored: _Scored) -> tuple[dict[str, list[float]], list[SampleRow]]:
    """Metrics by name, and samples."""
    table: dict[str, list[float]] = {}
    rows: list[SampleRow] = []
    for step, answers in enumerate(_batches(said), 1):
        reward = scored.reward(step)
        scores = [reward(answer) for answer in answers]
        for name, value in _metrics(said, scored, answers, scores).items():
            table.setdefault(name, []).append(value)
        if (step - 1) % scored.every == 0:
            rows += [_row(step, answer, score) for answer, score in list(zip(answers, scores, strict=True))
                     [: scored.samples]]  # fmt: skip
    return table, rows


@cache
def _batches(policy: _Said) -> tuple[list[Answer], ...]:
    """The answers of each step."""
    chance = random.Random(policy.seed)
    return tuple(_batch(policy, step / policy.steps, chance) for step in range(policy.steps))


def _batch(policy: _Said, progress: float, chance: random.Random) -> list[Answer]:
    answers: list[Answer] = []
    for prompt in range(policy.prompts):
        truth = "".join(chance.choices("0123456789", k=4))
        group = [_answer(policy, prompt, truth, progress, chance) for _ in range(policy.size)]
        group[: policy.twins] = [group[0]] * min(policy.twins, policy.size)
        answers += group
    return answers


def _answer(policy: _Said, prompt: int, truth: str, progress: float, chance: random.Random) -> Answer:
    said: list[str] = []
    for place in range(policy.limit):
        if chance.random() < policy.ends * (1.0 if place == len(truth) else 0.1):
            return Answer(prompt, truth, "".join(said), place + 1)
        right = place < len(truth) and chance.random() < policy.skill(progress)
        # A policy that is not sure says anything, marks that are not read included.
        said.append(truth[place] if right else chance.choice("0123456789xyz--"))
    return Answer(prompt, truth, "".join(said).replace("-", ""), policy.limit)


def _row(step: int, answer: Answer, score: float) -> SampleRow:
    return SampleRow(step=step, uid=f"{step}-{answer.prompt}", prompt=f"say {answer.truth}", response=answer.text,
                     ground_truth=answer.truth, reward=score, length=answer.length)  # fmt: skip


def _metrics(said: _Said, scored: _Scored, answers: Sequence[Answer], scores: Sequence[float]) -> dict[str, float]:
    size = said.size
    advantages = scored.advantages(scores, size)
    groups = [scores[start : start + size] for start in range(0, len(scores), size)]
    texts = [[a.text for a in answers[start : start + size]] for start in range(0, len(answers), size)]
    pairs = sum(a == b for group in texts for i, a in enumerate(group) for b in group[i + 1 :])
    lengths = [float(answer.length) for answer in answers]
    metrics: dict[str, float] = {}
    for name, values in (("critic/score", scores), ("critic/advantages", advantages), ("response_length", lengths)):
        metrics |= {f"{name}/mean": fmean(values), f"{name}/max": max(values), f"{name}/min": min(values)}
    metrics["critic/advantages/std"] = _spread(advantages, 0)
    metrics["critic/score/std"] = _spread(scores, 0)
    metrics["response_length/clip_ratio"] = fmean(length >= scored.stated for length in lengths)
    metrics["train/zero_advantage_groups"] = fmean(min(group) == max(group) for group in groups)
    metrics["response/duplicate_ratio"] = pairs / (len(groups) * math.comb(size, 2))
    # All pairs of a simulated group are drawn alike, so that those without a twin give the chance of a pair.
    free = [(a, b) for group in texts for i, a in enumerate(group[said.twins :]) for b in group[said.twins + 1 + i :]]
    metrics["response/duplicate_ratio_expected"] = sum(a == b for a, b in free) / max(1, len(free))
    return metrics
