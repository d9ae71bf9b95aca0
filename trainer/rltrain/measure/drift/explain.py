"""Finds what a gap comes from: tries one change after the other until one removes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlcheck.facts.drift import Gap
from rltrain.config.schema import RunConfig
from rltrain.measure.drift.attempts import Attempts
from rltrain.measure.drift.configs import changed
from rltrain.measure.drift.measure import Measured, gap_of, measured
from rltrain.measure.drift.prompts import Prompts
from rltrain.measure.drift.reread import Reading
from rltrain.measure.drift.sides import Sides, opened
from rltrain.measure.drift.temperatures import temperature_changes
from rltrain.measure.drift.tokens import engine_tokens, other_renderings
from rltrain.measure.drift.variants import Change, readings, restarts


def on_training_side(trials: Attempts, sides: Sides, found: Measured) -> None:
    """Try what needs no new process: the same samples read otherwise, and other samples of the same engine."""
    attempts: list[Callable[[], None]] = [
        partial(engine_tokens, trials, sides, found),
        partial(temperature_changes, trials, sides, found),
        partial(_uncut, trials, sides, found),
        partial(other_renderings, trials, sides, found),
        *(partial(_reread, trials, sides, found, change) for change in readings(sides.config)),
    ]
    for attempt in attempts:
        if trials.done:
            return
        attempt()


def _reread(trials: Attempts, sides: Sides, found: Measured, change: Change) -> None:
    reading = change.reading or Reading()
    trials.attempt(change, lambda: gap_of(found.answers, sides.reread(found.answers.batch, reading)[0]))


def _uncut(trials: Attempts, sides: Sides, found: Measured) -> None:
    """Tokens drawn from all: the engine's log-probabilities are of what top-k, top-p and min-tokens leave."""
    sampling = found.answers.sampling
    whole = replace(sampling, top_p=1.0, top_k=-1, min_tokens=0)
    if whole == sampling:
        return
    rollout = "actor_rollout_ref.rollout"
    overrides = (f"{rollout}.top_p=1.0", f"{rollout}.top_k=-1", f"{rollout}.min_tokens=0")
    title = "tokens drawn from the whole distribution"
    change = Change("uncut_sampling", title, family="wrong", side="rollout", overrides=overrides)

    def act() -> Gap:
        with sides.rollout.phase():
            answers = sides.sample(found.answers.batch.samples, whole)
        return gap_of(answers, sides.read(answers))

    trials.attempt(change, act)


def by_restarts(trials: Attempts, config: RunConfig, prompts: Prompts, found: Measured, directory: Path) -> None:
    """Try what needs a new crew, one after the other, as far as the time goes."""
    longest_s = 0.0
    pending = restarts(config)
    while pending and not trials.done:
        if time.monotonic() - trials.begun + longest_s > trials.budget_s:
            names = ", ".join(change.name for change in pending)
            trials.report.note(f"not tried for lack of time ({trials.budget_s:g} s): {names}")
            return
        change, begun = pending.pop(0), time.monotonic()
        trials.attempt(change, partial(_restarted, trials, change, config, prompts, found, directory), stage=False)
        longest_s = max(longest_s, time.monotonic() - begun)


def _restarted(
    trials: Attempts, change: Change, config: RunConfig, prompts: Prompts, found: Measured, directory: Path
) -> Gap:
    with opened(changed(config, change.overrides), directory, trials.report) as sides:
        if change.same_samples:
            with trials.report.stage(f"trying: {change.title}"):
                return gap_of(found.answers, sides.read(found.answers))
        fewer = prompts if change.most_prompts is None else _fewer(prompts, change.most_prompts)
        again = measured(sides, replace(fewer, hot=()), trials.report)
        return gap_of(again.answers, again.train)


def _fewer(prompts: Prompts, most: int) -> Prompts:
    step = -(-len(prompts.usual) // most)
    return replace(prompts, usual=prompts.usual[::step])
