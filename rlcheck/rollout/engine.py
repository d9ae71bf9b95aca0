"""The engine of a config, started in a process of its own by the trainer's plug-in `rollout`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.active_child import ProbeFailed, run_probe
from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.rollout import (
    Case,
    Failure,
    LogProbs,
    RolloutFacts,
    SleepUse,
    Speed,
    StageTime,
    TemplateUse,
)
from rlcheck.facts.run import RunFacts
from rlcheck.rollout.root import known_as, root_of

START_S = 600.0
"""rltrain's own limit for the start of an engine (`rollout.start_timeout_s`)."""
_PRINTED = 2000
"""Of the lines that an engine has printed, so many are searched for what is known."""
STAGE_S = 300.0
"""Reading a config, a tokenizer from a slow disk, one batch: each is far below it on any machine that works."""
_TYPES: dict[str, Any] = {
    "speed": Speed,
    "log_probs": LogProbs,
    "stops": tuple[Case, ...],
    "lengths": tuple[Case, ...],
    "template": TemplateUse,
    "sleep": SleepUse,
}


def examine_engine(
    run: RunFacts,
    source: str,
    overrides: Sequence[str],
    directory: str | Path,
    *,
    python: Sequence[str] = (),
    random_weights: bool = False,
    start_s: float = START_S,
    stage_s: float = STAGE_S,
    on_stage: Callable[[str], None] = lambda _: None,
) -> RolloutFacts:
    """Start the engine of `run` as a training run would, try it, and end it.

    Args:
        run: the config, as it was read.
        source: that it was read from, with `overrides`.
        overrides: with which it was read.
        directory: where a toy may be made.
        python: the interpreter that has the engine; empty for the doctor's own.
        random_weights: never those of the model's files.
        start_s: longest time that the engine may take to start.
        stage_s: longest time of any other stage.
        on_stage: told what is done, before it is.
    """
    target = source
    spec = run.spec.rollout
    if spec.name not in ("vllm", "hf"):
        line = f"the engine of this config is {spec.name}; only vllm and hf can be started by the doctor"
        return _failed(target, spec.name, Failure(stage="config", kind="unsupported", line=line), {})
    request: dict[str, Any] = {"directory": str(directory), "random_weights": random_weights}
    if run.framework == "rltrain" and is_readable(source):
        request |= {"source": source, "overrides": list(overrides)}
    else:
        request["run"] = msgspec.to_builtins(run)
    try:
        found = run_probe(
            python,
            "rollout",
            request,
            stage_timeout_s=lambda stage: start_s if stage == "engine start" else stage_s,
            total_timeout_s=start_s + 8 * stage_s,
            on_stage=lambda stage, done, total: on_stage(stage),
            # Engines that die leave their sockets and files there.
            environ=os.environ | {"TMPDIR": str(directory)},
        )
    except ProbeFailed as error:
        return _failed(target, spec.name, failure_of(error), with_last_stage(error))
    return _facts(target, found, None)


def is_readable(source: str) -> bool:
    """Whether rltrain can read it: a recipe's name or a YAML file, not a pasted line."""
    return source.endswith((".yaml", ".yml")) or re.fullmatch(r"[\w-]*\w", source) is not None


def with_last_stage(error: ProbeFailed) -> dict[str, Any]:
    """What was known, with the time in the stage that failed."""
    found = dict(error.partial)
    times: list[Any] = list(found.get("stages", ()))
    if error.stages:
        name, seconds = error.stages[-1]
        times.append({"name": name, "seconds": round(seconds, 3)})
    return found | {"stages": times}


def failure_of(error: ProbeFailed) -> Failure:
    """What a plug-in that gave no result has said, and what was raised first."""
    line = str(error)
    root = "" if error.kind in ("user", "missing") else root_of(line, error.printed)
    known_by = known_as([*error.printed[-_PRINTED:], line])
    tail = () if error.kind in ("user", "missing") else error.tail[-12:]
    return Failure(stage=error.stage, kind=error.kind, line=line, root=root, known=known_by, tail=tail)


def _failed(target: str, engine: str, failure: Failure, found: dict[str, Any]) -> RolloutFacts:
    return _facts(target, {"engine": engine, **found}, failure)


def _facts(target: str, found: dict[str, Any], failure: Failure | None) -> RolloutFacts:
    words = f"not reached: {failure.line}" if failure else "not measured"
    sections = {name: section_of(found.get(name), kind, words) for name, kind in _TYPES.items()}
    facts = RolloutFacts(
        target=target,
        engine=str(found.get("engine", "")),
        version=str(found.get("version", "")),
        model=str(found.get("model", "")),
        device=str(found.get("device", "")),
        weights=str(found.get("weights", "")),
        stages=msgspec.convert(found.get("stages", ()), tuple[StageTime, ...]),
        failure=failure,
        server=absent("no server: the engine was started here"),
    )
    return msgspec.structs.replace(facts, **sections)


def section_of(value: Any, kind: Any, words: str) -> Fact[Any]:
    """A part of what a plug-in gave, as a fact; `words`: why there is none, where it is missing."""
    if value is None:
        return missing(MissingKind.ERROR, words)
    if isinstance(value, dict) and "absent" in value:
        return absent(str(value["absent"]))  # pyright: ignore[reportUnknownArgumentType]
    return known(msgspec.convert(value, kind))
