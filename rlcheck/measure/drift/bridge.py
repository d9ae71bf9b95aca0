"""Both sides of a config, started in a process of their own by the trainer's plug-in `drift`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.drift import DriftFacts
from rlcheck.facts.rollout import Failure
from rlcheck.measure.config.engines import not_startable
from rlcheck.measure.plugin import ProbeFailed, decoded, run_probe
from rlcheck.measure.rollout.bridge import failure_of, is_readable

START_S = 900.0
"""Ray, the training ranks and the engines: rltrain gives an engine alone 600 s."""
STAGE_S = 600.0
"""One sync, one round of generation, one pass of the training side."""
_STARTS = "starting"
"""Stages of this first word start processes and load models."""


@dataclass(frozen=True)
class DriftOptions:
    """What is measured.

    Args:
        num_prompts: from the run's data, beside the built-in ones; 0: 16 on a CPU, 64 on GPUs.
        random_weights: never those of the model's files.
        explain: try changes, one at a time, where the gap is more than rounding explains.
        try_all: try them all, whatever the gap is and whatever has removed it.
        operations: compare the outputs of every operation of the model on one sequence.
        batch_invariant: with the engine's batch-invariant mode (VLLM_BATCH_INVARIANT=1).
        budget_s: no further change is begun after so many seconds of trying.
        noise: by dtype, the mean |log p| difference that rounding explains; empty: the plug-in's own.
    """

    num_prompts: int = 0
    random_weights: bool = False
    explain: bool = True
    try_all: bool = False
    operations: bool = False
    batch_invariant: bool = False
    budget_s: float = 600.0
    noise: tuple[tuple[str, float], ...] = ()


def examine_drift(
    run: ConfigFacts,
    source: str,
    overrides: Sequence[str],
    directory: str | Path,
    options: DriftOptions,
    *,
    python: Sequence[str] = (),
    start_s: float = START_S,
    stage_s: float = STAGE_S,
    on_stage: Callable[[str], None] = lambda _: None,
) -> DriftFacts:
    """Start engine and training side of `run` as a training run would, compare them, and end them.

    Args:
        run: the config, as it was read.
        source: that it was read from, with `overrides`.
        overrides: with which it was read.
        directory: an existing one for a toy, logs, and what dying engines leave.
        options: what is measured.
        python: the interpreter that has the trainer; empty for the doctor's own.
        start_s: longest time that processes and models may take to start.
        stage_s: longest silence in any other stage.
        on_stage: told what is done, before it is.
    """
    engine = run.spec.rollout.name
    if line := not_startable(engine, run.framework):
        failure = Failure(stage="config", kind="unsupported", line=line)
        return _finished(source, engine, decoded({}, DriftFacts, f"not reached: {line}"), failure)
    request = _request(options) | {"directory": str(directory)}
    if run.framework == "rltrain" and is_readable(source):
        request |= {"source": source, "overrides": list(overrides)}
    else:
        request["run"] = msgspec.to_builtins(run)
    try:
        found = run_probe(
            python,
            "drift",
            request,
            stage_timeout_s=lambda stage: start_s if stage.startswith(_STARTS) else stage_s,
            total_timeout_s=start_s + 8 * stage_s + options.budget_s,
            on_stage=lambda stage, done, total: on_stage(stage),
            environ=_environ(options, directory),
        )
        return _finished(source, engine, decoded(found, DriftFacts, "not measured"), None)
    except ProbeFailed as error:
        failure = failure_of(error)
        return _finished(source, engine, error.facts(DriftFacts, f"not reached: {failure.line}"), failure)


def _finished(target: str, engine: str, facts: DriftFacts, failure: Failure | None) -> DriftFacts:
    return msgspec.structs.replace(facts, target=target, engine=facts.engine or engine, failure=failure)


def _request(options: DriftOptions) -> dict[str, Any]:
    return {
        "num_prompts": options.num_prompts,
        "random_weights": options.random_weights,
        "explain": options.explain,
        "all": options.try_all,
        "operations": options.operations,
        "budget_s": options.budget_s,
        "noise": dict(options.noise),
    }


def _environ(options: DriftOptions, directory: str | Path) -> dict[str, str]:
    """What the plug-in, and so every process of the run, is started with.

    Ray's sockets have paths of at most 107 bytes, so that its own directory stays where it is.
    """
    environ = os.environ | {"TMPDIR": str(directory)}
    environ["RAY_TMPDIR"] = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return environ | {"VLLM_BATCH_INVARIANT": "1"} if options.batch_invariant else environ
