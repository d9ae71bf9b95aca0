"""`rlcheck resume`: can this run be resumed, by whom, from which step, and with what lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import begin
from rlcheck.cli.requests.records import ResumeRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.hygiene import made_safe
from rlcheck.facts.resume import ResumeFacts
from rlcheck.measure.resume.answer import answer


def run(request: ResumeRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that do not go together, or a folder without checkpoints.
    """
    examination = begin(request.report, "resume", alone=True)
    if request.report.facts is not None:
        if request.target or request.checksums:
            raise UserError("--facts judges a record; leave DIR and --checksums out")
        lacking = "no look at checkpoints in it; `rlcheck resume DIR --record` writes one"
        nodes = tuple(_with(request, facts) for facts in recorded_with(request.report.facts, ("resume",), lacking))
    else:
        nodes = (document(resume=made_safe("resume", known(_looked(request)))),)
    report = examination.judge(nodes)
    found = next(facts.resume.value for facts in nodes if facts.resume.value is not None)
    data: dict[str, Any] = {**report.data, "resume": msgspec.to_builtins(answer(found))}
    return examination.end(msgspec.structs.replace(report, data=data, notes=(*report.notes, *found.notes)), nodes)


def _with(request: ResumeRequest, facts: Facts) -> Facts:
    """FACTS of a record, asked for the ranks of this call."""
    looked = facts.resume.value
    if looked is None or not request.ranks:
        return facts
    asked = msgspec.structs.replace(looked, wanted_ranks=request.ranks)
    return msgspec.structs.replace(facts, resume=known(asked))


def _looked(request: ResumeRequest) -> ResumeFacts:
    from rlcheck.measure.resume.look import look

    if not request.target:
        raise UserError("give DIR: a run's folder, that of its checkpoints, or one of them; or --facts RECORD")
    with Waiting() as waiting:
        place = Path(request.target)
        return look(place, ranks=request.ranks, checksums=request.checksums, on=lambda what: waiting.on(what))
