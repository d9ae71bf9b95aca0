"""The engine of a config, started in a process of its own by the trainer's plug-in `rollout`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.diagnose.engine_error import known_as, root_of
from rlcheck.facts.base import Fact, absent
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.rollout import Failure, RolloutFacts
from rlcheck.measure.config.engines import not_startable
from rlcheck.measure.plugin import ProbeFailed, decoded, run_probe

START_S = 600.0
"""rltrain's own limit for the start of an engine (`rollout.start_timeout_s`)."""
_PRINTED = 2000
"""Of the lines that an engine has printed, so many are searched for what is known."""
STAGE_S = 300.0
"""Reading a config, a tokenizer from a slow disk, one batch: each is far below it on any machine that works."""


def examine_engine(
    run: ConfigFacts,
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
    if line := not_startable(spec.name, run.framework):
        failure = Failure(stage="config", kind="unsupported", line=line)
        return _finished(target, spec.name, decoded({}, RolloutFacts, f"not reached: {line}"), failure)
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
        return _finished(target, spec.name, decoded(found, RolloutFacts, "not measured"), None)
    except ProbeFailed as error:
        failure = failure_of(error)
        return _finished(target, spec.name, error.facts(RolloutFacts, f"not reached: {failure.line}"), failure)


def is_readable(source: str) -> bool:
    """Whether rltrain can read it: a recipe's name or a YAML file, not a pasted line."""
    return source.endswith((".yaml", ".yml")) or re.fullmatch(r"[\w-]*\w", source) is not None


def failure_of(error: ProbeFailed) -> Failure:
    """What a plug-in that gave no result has said, and what was raised first."""
    line = str(error)
    root = "" if error.kind in ("user", "missing") else root_of(line, error.printed)
    known_by = known_as([*error.printed[-_PRINTED:], line])
    tail = () if error.kind in ("user", "missing") else error.tail[-12:]
    return Failure(stage=error.stage, kind=error.kind, line=line, root=root, known=known_by, tail=tail)


def _finished(target: str, engine: str, facts: RolloutFacts, failure: Failure | None) -> RolloutFacts:
    server: Fact[Any] = absent("no server: the engine was started here")
    return msgspec.structs.replace(facts, target=target, engine=facts.engine or engine, failure=failure, server=server)
