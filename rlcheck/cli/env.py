"""`rlcheck env`: collect or read facts, judge them, show the report, apply safe fixes."""

from __future__ import annotations

from rlcheck.cli.facts_files import recorded
from rlcheck.cli.front_door import begin
from rlcheck.cli.interpreter import make_context
from rlcheck.cli.requests.machines import EnvRequest
from rlcheck.cli.waiting import Waiting, show_waiting
from rlcheck.doctor import clinic, fixes
from rlcheck.errors import UserError
from rlcheck.facts.document import Facts
from rlcheck.families import OF_MACHINES
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.gather import gather
from rlcheck.measure.machine.registry import Probe


def run(request: EnvRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that do not go together, or a file that cannot be used.
    """
    _refuse_nonsense(request)
    asked = request.report
    python = "" if request.hosts else asked.python
    # A record may hold what other commands measured.
    examination = begin(asked, "env", knows=OF_MACHINES if asked.facts is None else None)
    probes = examination.doctor.probes_for(examination.checks())
    context = make_context(python, request.deep)
    nodes, without = _nodes(request, context, probes)
    report = examination.judge(nodes)
    if request.fix:
        report = fixes.applied(
            report,
            context,
            lambda changed: examination.judge((gather(changed, probes, asked.timeout_s, show_waiting),)),
            dry_run=request.dry_run,
            yes=request.yes,
        )
    report = clinic.fail_if_python_missing(report, nodes[0], python)
    return examination.end(clinic.fail_if_hosts_missing(report, without), nodes)


def _refuse_nonsense(request: EnvRequest) -> None:
    asked = request.report
    if asked.facts is not None and (request.fix or asked.python or request.deep or request.hosts):
        raise UserError(
            "--facts judges another machine's record; --fix, --python, --deep and --hosts need the machine itself"
        )
    if request.hosts and (request.fix or request.deep):
        raise UserError("--hosts examines other machines; --fix and --deep are for this one alone")
    if (request.dry_run or request.yes) and not request.fix:
        raise UserError("--dry-run and --yes go with --fix")


def _nodes(
    request: EnvRequest, context: ProbeContext, probes: tuple[Probe, ...]
) -> tuple[tuple[Facts, ...], dict[str, str]]:
    """The documents to judge, and the hosts that there are none of, with the reasons."""
    if request.hosts:
        from rlcheck.measure.cluster.boards import facts_of_hosts

        with Waiting() as waiting:
            return facts_of_hosts(request.hosts, request.report.python, waiting)
    if request.report.facts is None:
        return (gather(context, probes, request.report.timeout_s, show_waiting),), {}
    return recorded(request.report.facts), {}
