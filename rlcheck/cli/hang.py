"""`rlcheck hang`: whether a running job stands still, and for whom all of it waits."""

from __future__ import annotations

import sys
from typing import Any

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import Examination, begin
from rlcheck.cli.interpreter import make_context
from rlcheck.cli.requests.records import HangRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.diagnose.hang.live import judge
from rlcheck.errors import USAGE_ERROR, UserError
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.hang import Hang, HangFacts
from rlcheck.finding import Report

_SECTIONS = ("python", "ray")


class HangReport(Report, frozen=True, omit_defaults=False):
    """A report with the verdict for programs, as `rlcheck diagnose` gives it on dumps; None: the job goes on, or could
    not be judged (exit code 2)."""

    hang: Hang | None = None


def run(request: HangRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that do not go together, no job, or several.
    """
    examination = begin(request.report, "hang", alone=True)
    if request.report.facts is not None:
        if request.target or request.pid or request.hosts or request.head_ip:
            raise UserError("--facts judges a record; leave RUN_DIR, --pid, --hosts and --head-ip out")
        nodes = recorded_with(
            request.report.facts, ("hang",), "no look at a job in it; `rlcheck hang --record` writes one"
        )
    else:
        found = _looked_at_nodes(request, examination) if request.hosts or request.head_ip else _looked(request)
        nodes = (document(hang=known(found)),)
    report = examination.judge(nodes)
    return examination.end(_with_verdict(report, nodes), nodes)


def _looked(request: HangRequest) -> HangFacts:
    from rlcheck.measure.hang.jobs import find
    from rlcheck.measure.hang.look import watch

    if sys.platform != "linux":
        raise UserError("rlcheck hang reads /proc, which Linux alone has; use it on the job's own machine")
    if request.target and request.pid:
        raise UserError("RUN_DIR and --pid: give one of them")
    with Waiting() as waiting:
        waiting.on("the job's processes")
        job = find(request.pid, request.target)
        if not job.processes:
            raise UserError(
                f"no process of {request.target or 'a job'} is left on this machine; "
                "read its logs with rlcheck diagnose"
            )
        return watch(job, request.watched_s, lambda what: waiting.on(what))


def _looked_at_nodes(request: HangRequest, examination: Examination) -> HangFacts:
    from rlcheck.measure.cluster.boards import open_machines
    from rlcheck.measure.hang.nodes import look_at_nodes

    if request.pid:
        raise UserError("--pid names a process of this machine; with --hosts or --head-ip name the run's directory")
    with Waiting() as waiting:
        waiting.on("this machine")
        context = make_context(request.report.python, deep=False)
        facts = examination.own_facts(context, _SECTIONS if request.head_ip else ())
        board, _ = open_machines(request.head_ip, request.port, request.hosts, context, facts)
        with board:
            waiting.on(f"the job's processes on {len(board.seats)} nodes")
            found = look_at_nodes(board, request.target, request.watched_s, waiting.on_names)
    if not found.processes:
        raise UserError(f"no process of a job was found: {'; '.join(found.notes[:4]) or 'there are no nodes'}")
    return found


def _with_verdict(report: Report, nodes: tuple[Facts, ...]) -> HangReport:
    """REPORT, with the verdict beside the findings; exit code 2 where that is not known."""
    judged = [judge(facts.hang.value) for facts in nodes if facts.hang.value is not None]
    hang = next((one.hang for one in judged if one.hang is not None), None)
    doubt = any(one.doubt for one in judged)
    notes = [note for facts in nodes if facts.hang.value is not None for note in facts.hang.value.notes]
    values = {name: getattr(report, name) for name in report.__struct_fields__}
    code = report.exit_code or (USAGE_ERROR if doubt and hang is None else 0)
    more: dict[str, Any] = {**values, "exit_code": code, "notes": (*report.notes, *notes)}
    return HangReport(**more, hang=hang)
