"""The measuring plug-in `drift`: engine and training side of a config, started as a run does, on the same samples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcheck.facts.base import absent, known, value_or
from rlcheck.facts.drift import DriftFacts, WeightsUse
from rlcheck.measure.drift.bands import coarser, noise
from rltrain.config.engines import ENGINES
from rltrain.config.schema import RunConfig
from rltrain.controller.prepare import tokenizer_of
from rltrain.core.errors import RunFailure, UserError
from rltrain.measure.drift.attempts import Attempts
from rltrain.measure.drift.configs import Subject, changed, subject_of
from rltrain.measure.drift.explain import by_restarts, on_training_side
from rltrain.measure.drift.measure import Measured, described, gap_of, measured, not_finite
from rltrain.measure.drift.operations import operations
from rltrain.measure.drift.prompts import DEFAULT_COUNT, Prompts, make_prompts
from rltrain.measure.drift.report import Report
from rltrain.measure.drift.sides import Sides, opened
from rltrain.measure.report import Tell

_BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"


def run(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """How far the engine's log-probabilities of its own samples are from the training side's, and why.

    Args:
        request: `source` and `overrides` of an rltrain config, or `run`, a `ConfigFacts` as plain data (of another
            framework's config); `directory`, an existing one, for a toy, random weights and logs; and, each with a
            default: `num_prompts`, `random_weights` (never those of the model's files), `explain`, `all` (try every
            change), `operations`, `budget_s`, `noise` (by dtype).
        tell: called with `{"stage": …}` before each part, and with `{"partial": …}` after it.

    Returns:
        `rlcheck.facts.drift.DriftFacts` as plain data.

    Raises:
        UserError: what the engine, or rltrain, does not take.
        RunFailure: a process of the run failed.
    """
    report, directory = Report(tell, DriftFacts()), Path(request["directory"])
    with report.stage("config"):
        subject = subject_of(request)
        explained = _noise(subject.config, request.get("noise") or {})
        report.add(**_header(subject), noise=explained)
    config = subject.config
    with report.stage("prompts"):
        count = int(request.get("num_prompts") or DEFAULT_COUNT[config.trainer.device])
        prompts = make_prompts(config, tokenizer_of(config), count)
    for note in (*subject.notes, *prompts.notes):
        report.note(note)
    traced = bool(request.get("operations"))
    if not traced:
        report.add(operations=absent("operations were not to be compared (--operations)"))
    with opened(config, directory, report) as sides:
        found = measured(sides, prompts, report)
        tell_measured(report, sides, found)
        if traced and _traceable(config):
            _compare_operations(report, sides, prompts, directory)
        trials = trials_of(request, found, explained, report)
        if trials is not None:
            on_training_side(trials, sides, found)
    if traced and not _traceable(config):
        _compare_operations_apart(report, config, prompts, directory)
    if trials is not None:
        by_restarts(trials, config, prompts, found, directory)
    return report.result()


def _header(subject: Subject) -> dict[str, Any]:
    parts = subject.config.actor_rollout_ref
    runtime_env: dict[str, Any] = subject.config.ray_kwargs.ray_init.get("runtime_env") or {}
    environ: Mapping[str, str] = {**os.environ, **(runtime_env.get("env_vars") or {})}
    return {
        "model": parts.model.path,
        "engine": parts.rollout.name,
        "device": subject.config.trainer.device,
        "rollout_dtype": parts.rollout.dtype,
        "train_dtype": parts.actor.fsdp_config.dtype,
        "temperature": parts.rollout.temperature,
        "batch_invariant": environ.get(_BATCH_INVARIANT) == "1",
        "weights_from": subject.weights_from,
    }


def _noise(config: RunConfig, given: Mapping[str, float]) -> float:
    """What rounding explains for the coarser of the two dtypes."""
    parts = config.actor_rollout_ref
    rollout, train = parts.rollout.dtype, parts.actor.fsdp_config.dtype
    return float(given.get(coarser(rollout, train)) or noise(rollout, train, config.trainer.device))


def tell_measured(report: Report, sides: Sides, found: Measured) -> None:
    """Tell all that follows from one measurement."""
    version = sides.crew.facts["engines"][0]["engine_version"]
    report.add(engine_version=str(version), weights=found.weights, **described(found, sides))
    if lost := not_finite(found):
        report.note(f"{lost} sampled tokens have no finite log-probability on both sides, and are left out")


def trials_of(request: Mapping[str, Any], found: Measured, explained: float, report: Report) -> Attempts | None:
    """What is to be tried, where rounding explains EXPLAINED; None: nothing, and REPORT says why."""
    try_all, gap = bool(request.get("all")), gap_of(found.answers, found.train)
    if not request.get("explain", True):
        report.add(variants=absent("no change was to be tried"))
    elif value_or(found.weights, WeightsUse()).differing:
        report.add(variants=absent("the engine's weights are others: nothing else is tried before they are equal"))
    elif gap.log_probs_diff_mean <= explained and not try_all:
        report.add(variants=known(()))
    else:
        return Attempts(gap, explained, report, try_all, float(request.get("budget_s") or 600.0))
    return None


_TRACEABLE = (
    "actor_rollout_ref.rollout.enforce_eager=true",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
)


def _traceable(config: RunConfig) -> bool:
    """Whether the engine of CONFIG runs its operations one by one, in one process."""
    rollout = config.actor_rollout_ref.rollout
    one_by_one = rollout.enforce_eager or config.trainer.device == "cpu" or ENGINES[rollout.name].is_eager
    return one_by_one and rollout.tensor_model_parallel_size == 1


def _compare_operations(report: Report, sides: Sides, prompts: Prompts, directory: Path) -> None:
    """Tell what each operation gives on one prompt, the longest; or why not."""
    longest = max(prompts.usual, key=lambda sample: len(sample.prompt_ids))
    notes: list[str] = []
    try:
        with report.stage("operations"):
            place = directory / "operations"
            found = operations(sides.crew, sides.config, longest.prompt_ids, place, notes)
            report.add(operations=known(found))
    except UserError as error:
        report.add(operations=absent(str(error)))
    except RunFailure as error:
        report.note(f"operations could not be compared: {error}")
    for note in notes:
        report.note(note)


def _compare_operations_apart(report: Report, config: RunConfig, prompts: Prompts, directory: Path) -> None:
    """The same with an engine that can be traced; a failure of it is reported, and ends nothing."""
    try:
        with opened(changed(config, _TRACEABLE), directory, report) as sides:
            report.note(f"operations were compared with {' and '.join(_TRACEABLE)}")
            _compare_operations(report, sides, prompts, directory)
    except (UserError, RunFailure) as error:
        report.note(f"operations could not be compared: {error}")
