"""`rlcheck canary`: whether a live server computes with the weights of a saved checkpoint."""

from __future__ import annotations

import os
import signal

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import begin
from rlcheck.cli.interpreter import interpreter
from rlcheck.cli.requests.records import CanaryRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.canary import CanaryFacts
from rlcheck.facts.document import Facts


def run(request: CanaryRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a server that cannot be asked.
    """
    examination = begin(request.report, "canary", alone=True)
    if request.report.facts is not None:
        nodes = _recorded(request)
    else:
        nodes = (document(canary=known(_examined(request))),)
    return examination.conclude(nodes)


def _recorded(request: CanaryRequest) -> tuple[Facts, ...]:
    if request.url or request.checkpoint is not None:
        raise UserError("--facts judges a record; leave URL and --checkpoint out")
    assert request.report.facts is not None
    lacking = "no server in it; `rlcheck canary URL --checkpoint DIR --record` writes one"
    return recorded_with(request.report.facts, ("canary",), lacking)


def _examined(request: CanaryRequest) -> CanaryFacts:
    from rlcheck.measure.canary import ASK_S, Asked, examine_canary

    if not request.url or request.checkpoint is None:
        raise UserError("give the URL of a server and --checkpoint DIR, or --facts RECORD")
    for directory in (request.checkpoint, request.adapter, *request.earlier):
        if directory is not None and not directory.is_dir():
            raise UserError(f"{directory}: there is no such directory; name one with a saved model")
    # As Ctrl-C does: the process that computes must end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = Asked(request.url, request.checkpoint, request.adapter, request.earlier, request.model, request.dtype)
    with Waiting() as waiting:
        return examine_canary(
            asked,
            os.environ,
            python=interpreter(request.report.python),
            ask_s=request.report.timeout_s or ASK_S,
            on_stage=lambda stage: waiting.on(stage),
        )
