"""`rlcheck step`: whether a training step did what its config says, recomputed from its capsule."""

from __future__ import annotations

import signal

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import begin
from rlcheck.cli.interpreter import interpreter
from rlcheck.cli.requests.records import StepRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.step import StepFacts


def run(request: StepRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a path without a capsule.
    """
    examination = begin(request.report, "step", alone=True)
    if request.report.facts is not None:
        nodes = _recorded(request)
    else:
        nodes = (document(step=known(_proven(request))),)
    return examination.conclude(nodes)


def _recorded(request: StepRequest) -> tuple[Facts, ...]:
    if request.capsules:
        raise UserError("--facts judges a record; leave CAPSULE out")
    assert request.report.facts is not None
    return recorded_with(request.report.facts, ("step",), "no proof in it; `rlcheck step CAPSULE --record` writes one")


def _proven(request: StepRequest) -> StepFacts:
    from rlcheck.measure.step import STAGE_S, capsules_of, prove

    if not request.capsules:
        raise UserError("give a CAPSULE or RUN_DIR, or --facts RECORD")
    capsules = capsules_of(request.capsules)
    # As Ctrl-C does: the process that recomputes must end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Waiting() as waiting:
        return prove(
            capsules,
            request.checkpoint,
            python=interpreter(request.report.python),
            stage_s=request.report.timeout_s or STAGE_S,
            on_stage=lambda stage: waiting.on(stage),
        )
