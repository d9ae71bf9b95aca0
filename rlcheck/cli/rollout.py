"""`rlcheck rollout`: the engine of a config, started and tried; or a server that runs, asked the same."""

from __future__ import annotations

import os
import re
import signal
import tempfile

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import begin
from rlcheck.cli.interpreter import interpreter
from rlcheck.cli.requests.configs import RolloutRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import RolloutFacts

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)
_ADDRESS = re.compile(r"([\w.-]+|\[[0-9a-f:]+\]):\d{1,5}(/\S*)?", re.I)
_GENERATE_S = 120.0


def run(request: RolloutRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, a config that cannot be read, or a URL that names no server.
    """
    examination = begin(request.report, "rollout", alone=True)
    if request.report.facts is not None:
        nodes = _recorded(request)
    else:
        nodes = (document(rollout=known(_examined(request))),)
    return examination.conclude(nodes)


def _recorded(request: RolloutRequest) -> tuple[Facts, ...]:
    if request.target:
        raise UserError("--facts judges a record; leave CONFIG out")
    assert request.report.facts is not None
    lacking = "no engine in it; `rlcheck rollout CONFIG --record` writes one"
    return recorded_with(request.report.facts, ("rollout",), lacking)


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
    from rlcheck.measure.rollout.server import examine_server

    if request.overrides:
        raise UserError(f"{request.overrides[0]}: overrides change a CONFIG; a server runs as it was started")
    limit_s = min(_GENERATE_S, request.report.timeout_s or _GENERATE_S)
    with Waiting() as waiting:
        return examine_server(request.target, os.environ, lambda stage: waiting.on(f"the server: {stage}"), limit_s)


def _engine(request: RolloutRequest) -> RolloutFacts:
    from rlcheck.measure.config.whole import read_whole
    from rlcheck.measure.rollout.bridge import STAGE_S, examine_engine

    config = read_whole(request.target, request.overrides, framework=request.framework)
    limit_s = request.report.timeout_s
    with tempfile.TemporaryDirectory(prefix="rlcheck-rollout-") as directory, Waiting() as waiting:
        return examine_engine(
            config,
            request.target,
            request.overrides,
            directory,
            python=interpreter(request.report.python),
            random_weights=request.random_weights,
            start_s=min(request.start_timeout_s, limit_s or request.start_timeout_s),
            stage_s=min(STAGE_S, limit_s or STAGE_S),
            on_stage=lambda stage: waiting.on(f"the engine: {stage}"),
        )
