"""`rlcheck config`: read a run's config, judge it without starting anything, and show every finding at once."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from datetime import datetime, timezone

from rlcheck import __version__
from rlcheck.cli.active import ReportRequest, judge_and_show, recorded
from rlcheck.cli.app import UserError
from rlcheck.facts.base import Fact, known
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.runs.errors import ReadError

FAMILIES = ("CFG",)
# Of these, none holds a secret: whether models may be fetched (CFG030), how torch allocates (CFG064).
_VARIABLES = (
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
)


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
    nodes = _recorded(request) if request.report.facts is not None else (facts_of(read(request), request.look),)
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
    from rlcheck.runs.whole import read_whole

    if not request.config:
        raise UserError("give a CONFIG: a YAML, a recipe, a script, - for standard input, or --facts RECORD")
    try:
        return read_whole(
            request.config,
            request.overrides,
            framework=request.framework,
            look=request.look,
            model_shape=request.model_shape,
        )
    except ReadError as error:
        raise UserError(str(error)) from None


def facts_of(run: RunFacts, look: bool) -> Facts:
    """A document of this machine with nothing but the run in it and, if `look`, the variables that its checks read."""
    return Facts(
        rlcheck_version=__version__,
        node=socket.gethostname(),
        collected_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        run=known(run),
        environ=known({name: os.environ[name] for name in _VARIABLES if name in os.environ}) if look else Fact(),
    )
