"""One measurement: sync, sample, read again, compare."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlcheck.facts.base import Fact, known
from rlcheck.facts.drift import Gap, WeightsUse
from rltrain.controller.rollout import train_sampling
from rltrain.core.errors import RunFailure
from rltrain.measure.drift import agreement, bins
from rltrain.measure.drift.gaps import finite, gap
from rltrain.measure.drift.prompts import HOT, Prompts
from rltrain.measure.drift.report import Report
from rltrain.measure.drift.reread import Reading
from rltrain.measure.drift.sides import Answers, Sides
from rltrain.measure.drift.worst import worst

_HOTTER = 1.5
"""The high temperature: so many times the run's, and at least so much."""


@dataclass(frozen=True)
class Measured:
    """Answers, and the training side's log-probabilities of them `[B, R]`."""

    answers: Answers
    """Sampled as the run samples."""
    train: Tensor
    weights: Fact[WeightsUse]
    hot: Answers | None = None
    hot_train: Tensor | None = None


def measured(sides: Sides, prompts: Prompts, report: Report) -> Measured:
    """Sync, sample and read in SESSION, telling REPORT of each stage.

    Raises:
        RunFailure: a process failed.
    """
    sampling = train_sampling(sides.config)
    hotter = replace(sampling, temperature=max(_HOTTER, _HOTTER * sampling.temperature), top_p=1.0, top_k=-1)
    with ExitStack() as stack:
        with report.stage("weight sync, twice"):
            weights = stack.enter_context(agreement.synced_twice(sides))
        with report.stage("generation"):
            answers = sides.sample(prompts.usual, sampling)
            hot = sides.sample(prompts.hot, hotter) if prompts.hot else None
    with report.stage("training side's log-probabilities"):
        reading = Reading(temperature=hotter.temperature)
        hot_train = sides.reread(hot.batch, reading)[0] if hot is not None else None
        return Measured(answers, sides.read(answers), weights, hot, hot_train)


def flat(answers: Answers, train: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Finite log-probabilities of ANSWERS' tokens (of ROWS, bool `[B]`): training side's and engine's, `[N]`."""
    mask = answers.batch["response_mask"].bool()
    if rows is not None:
        mask = mask & rows[:, None]
    train, rollout = train[mask], answers.batch["rollout_log_probs"][mask]
    kept = finite(train, rollout)
    return train[kept], rollout[kept]


def gap_of(answers: Answers, train: Tensor) -> Gap:
    """The gap over all tokens of ANSWERS.

    Raises:
        RunFailure: no token has a finite log-probability on both sides.
    """
    both = flat(answers, train)
    if not len(both[0]):
        raise RunFailure("no sampled token has a finite log-probability on both sides")
    return gap(*both)


def described(found: Measured, sides: Sides) -> dict[str, Any]:
    """Fields of `DriftFacts` that follow from one measurement, but for the variants.

    Raises:
        RunFailure: as `gap_of`.
    """
    answers = found.answers
    train, rollout = flat(answers, found.train)
    position, length = _places(answers, found.train)
    return {
        "gap": known(gap_of(answers, found.train)),
        "by_kind": _by_kind(found),
        "by_position": bins.binned(position, bins.doubling(int(position.max())), train, rollout),
        "by_length": bins.binned(length, bins.doubling(int(length.max())), train, rollout),
        "histogram": bins.histogram(train, rollout),
        "points": bins.points(train, rollout),
        "worst": worst(answers, found.train, sides.tokenizer),
        "prompts": agreement.prompts(answers, sides.tokenizer),
        "num_prompts": len(answers.batch) + (len(found.hot.batch) if found.hot is not None else 0),
        "num_responses": len(answers.batch) + (len(found.hot.batch) if found.hot is not None else 0),
    }


def not_finite(found: Measured) -> int:
    """Tokens without a finite log-probability on both sides."""
    mask = found.answers.batch["response_mask"].bool()
    return int(mask.sum()) - len(flat(found.answers, found.train)[0])


def _by_kind(found: Measured) -> dict[str, Gap]:
    kinds = [sample.data_source for sample in found.answers.batch.samples]
    gaps: dict[str, Gap] = {}
    for kind in dict.fromkeys(kinds):
        both = flat(found.answers, found.train, torch.tensor([one == kind for one in kinds]))
        if len(both[0]):
            gaps[kind] = gap(*both)
    if found.hot is not None and found.hot_train is not None:
        both = flat(found.hot, found.hot_train)
        if len(both[0]):
            gaps[HOT] = gap(*both)
    return gaps


def _places(answers: Answers, train: Tensor) -> tuple[Tensor, Tensor]:
    """Of each token of `flat`: its place in the response, and the tokens of the sequence up to and including it."""
    mask = answers.batch["response_mask"].bool()
    prompt = answers.batch["attention_mask"].sum(dim=-1) - mask.sum(dim=-1)
    position = torch.arange(mask.shape[1]).expand(mask.shape)
    length = position + 1 + prompt[:, None]
    kept = finite(train[mask], answers.batch["rollout_log_probs"][mask])
    return position[mask][kept], length[mask][kept]
