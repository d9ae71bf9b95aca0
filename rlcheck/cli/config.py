"""`rlcheck config`: read a run's config, judge it without starting anything, and show every finding at once."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from datetime import datetime, timezone

import msgspec

from rlcheck import __version__
from rlcheck.cli.active import ReportRequest, judge_and_show, recorded
from rlcheck.cli.app import UserError
from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.runs.errors import ReadError

FAMILIES = ("CFG",)


@dataclass(frozen=True)
class ConfigRequest:
    """The options of one call, as in `rlcheck config --help`."""

    report: ReportRequest
    config: str = ""
    overrides: tuple[str, ...] = ()
    framework: str = "auto"
    look: bool = True
    model_shape: str = ""


def run_config(request: ConfigRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a config that cannot be read at all.
    """
    started = time.perf_counter()
    nodes = _recorded(request) if request.report.facts is not None else (facts_of(read(request)),)
    return judge_and_show(request.report, nodes, FAMILIES, "config", started, alone=True)


def _recorded(request: ConfigRequest) -> tuple[Facts, ...]:
    if request.config:
        raise UserError("--facts judges a record; leave CONFIG out")
    assert request.report.facts is not None
    nodes = tuple(facts for facts in recorded(request.report.facts) if facts.run.value is not None)
    if not nodes:
        raise UserError(f"--facts {request.report.facts}: no config in it; `rlcheck config CONFIG --record` writes one")
    return nodes


def read(request: ConfigRequest) -> RunFacts:
    """The run that the options name.

    Raises:
        UserError: there is none, or it cannot be read at all.
    """
    from rlcheck.runs.own_rules import with_own_rules
    from rlcheck.runs.read import read_run

    if not request.config:
        raise UserError("give a CONFIG: a YAML, a recipe, a script, - for standard input, or --facts RECORD")
    try:
        run = read_run(
            request.config,
            request.overrides,
            framework=request.framework,
            look=request.look,
            model_shape=request.model_shape,
        )
    except ReadError as error:
        raise UserError(str(error)) from None
    run = with_own_rules(run, request.config, request.overrides) if request.look else run
    return msgspec.structs.replace(run, num_gpus=_gpus(run, request.look))


def _gpus(run: RunFacts, look: bool) -> Fact[int]:
    """GPUs that a run on this machine would get."""
    if run.spec.device != "cuda":
        return absent(f"the run is on {run.spec.device}")
    if not look:
        return missing(MissingKind.NOT_COLLECTED, "--no-fs: the config is for another machine")
    from rlcheck.memory.gpus import local_gpus

    found = len(local_gpus())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if chosen:
        found = min(found, len([name for name in chosen.split(",") if name.strip() not in ("", "-1")]))
    return known(found) if found else absent("this machine has no GPU; the config is for another one")


def facts_of(run: RunFacts) -> Facts:
    """A document of this machine with nothing but the run in it."""
    return Facts(
        rlcheck_version=__version__,
        node=socket.gethostname(),
        collected_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        run=known(run),
    )
