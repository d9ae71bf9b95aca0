"""`rlcheck rollout`: the engine of a config, started and tried; or a server that runs, asked the same."""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone

from rlcheck import __version__
from rlcheck.cli.active import ReportRequest, Waiting, judge_and_show, recorded
from rlcheck.cli.app import UserError
from rlcheck.cli.config import ConfigRequest, read
from rlcheck.cli.env import interpreter
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import RolloutFacts

FAMILIES = ("ROL",)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)
_ADDRESS = re.compile(r"([\w.-]+|\[[0-9a-f:]+\]):\d{1,5}(/\S*)?", re.I)
_GENERATE_S = 120.0


@dataclass(frozen=True)
class RolloutRequest:
    """The options of one call, as in `rlcheck rollout --help`."""

    report: ReportRequest
    target: str = ""
    overrides: tuple[str, ...] = ()
    framework: str = "auto"
    start_timeout_s: float = 600.0
    random_weights: bool = False


def run_rollout(request: RolloutRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, a config that cannot be read, or a URL that names no server.
    """
    started = time.perf_counter()
    if request.report.facts is not None:
        nodes = _recorded(request)
    else:
        nodes = (_document(_examined(request)),)
    return judge_and_show(request.report, nodes, FAMILIES, "rollout", started, alone=True)


def _recorded(request: RolloutRequest) -> tuple[Facts, ...]:
    if request.target:
        raise UserError("--facts judges a record; leave CONFIG out")
    assert request.report.facts is not None
    nodes = tuple(facts for facts in recorded(request.report.facts) if facts.rollout.value is not None)
    if not nodes:
        raise UserError(
            f"--facts {request.report.facts}: no engine in it; `rlcheck rollout CONFIG --record` writes one"
        )
    return nodes


def _document(rollout: RolloutFacts) -> Facts:
    return Facts(
        rlcheck_version=__version__,
        node=socket.gethostname(),
        collected_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        rollout=known(rollout),
    )


def _examined(request: RolloutRequest) -> RolloutFacts:
    if not request.target:
        raise UserError("give a CONFIG, the URL of a server (http://HOST:PORT), or --facts RECORD")
    # As Ctrl-C does: what was started here and written to the temporary directory must go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if _URL.match(request.target):
        return _server(request)
    if _ADDRESS.fullmatch(request.target) and not os.path.exists(request.target):
        raise UserError(f"{request.target}: a URL begins with its scheme: http://{request.target}")
    return _engine(request)


def _server(request: RolloutRequest) -> RolloutFacts:
    from rlcheck.rollout.http import UrlError
    from rlcheck.rollout.server import examine_server

    if request.overrides:
        raise UserError(f"{request.overrides[0]}: overrides change a CONFIG; a server runs as it was started")
    limit_s = min(_GENERATE_S, request.report.timeout_s or _GENERATE_S)
    with Waiting() as waiting:
        try:
            return examine_server(request.target, os.environ, lambda stage: waiting.on(f"the server: {stage}"), limit_s)
        except UrlError as error:
            raise UserError(str(error)) from None


def _engine(request: RolloutRequest) -> RolloutFacts:
    from rlcheck.rollout.engine import STAGE_S, examine_engine

    run = read(ConfigRequest(request.report, request.target, request.overrides, request.framework))
    limit_s = request.report.timeout_s
    with tempfile.TemporaryDirectory(prefix="rlcheck-rollout-") as directory, Waiting() as waiting:
        return examine_engine(
            run,
            request.target,
            request.overrides,
            directory,
            python=interpreter(request.report.python),
            random_weights=request.random_weights,
            start_s=min(request.start_timeout_s, limit_s or request.start_timeout_s),
            stage_s=min(STAGE_S, limit_s or STAGE_S),
            on_stage=lambda stage: waiting.on(f"the engine: {stage}"),
        )
