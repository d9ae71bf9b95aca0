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
    if request.again and request.each_device:
        raise UserError("--again runs the whole step, --each-device one micro batch on each device: give one of them")
    examination = begin(request.report, "step", alone=True)
    if request.report.facts is not None:
        nodes = _recorded(request)
    else:
        nodes = (document(step=known(_proven(request))),)
    return examination.conclude(nodes)


def _recorded(request: StepRequest) -> tuple[Facts, ...]:
    if request.capsules or request.again or request.each_device:
        raise UserError("--facts judges a record; leave CAPSULE, --again and --each-device out")
    assert request.report.facts is not None
    return recorded_with(request.report.facts, ("step",), "no proof in it; `rlcheck step CAPSULE --record` writes one")


def _proven(request: StepRequest) -> StepFacts:
    from rlcheck.measure.replay import START_S, again
    from rlcheck.measure.step import STAGE_S, capsules_of, prove

    if not request.capsules:
        raise UserError("give a CAPSULE or RUN_DIR, or --facts RECORD")
    capsules = capsules_of(request.capsules)
    if request.score is not None and not request.score.is_file():
        raise UserError(f"--score {request.score}: there is no such file; name the Python file of the reward function")
    # As Ctrl-C does: the process that recomputes must end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Waiting() as waiting:
        if request.again or request.each_device:
            return again(
                capsules,
                request.checkpoint,
                each_device=request.each_device,
                python=interpreter(request.report.python),
                stage_s=request.report.timeout_s or START_S,
                on_stage=lambda stage: waiting.on(stage),
            )
        return prove(
            capsules,
            request.checkpoint,
            score=request.score,
            python=interpreter(request.report.python),
            stage_s=request.report.timeout_s or STAGE_S,
            on_stage=lambda stage: waiting.on(stage),
        )
