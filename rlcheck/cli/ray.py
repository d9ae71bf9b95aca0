"""`rlcheck ray`: the way to a head, the cluster as every node sees it, and how to start one."""

from __future__ import annotations

import sys
import time

import msgspec

from rlcheck.cli.facts_files import recorded
from rlcheck.cli.front_door import begin
from rlcheck.cli.interpreter import interpreter, make_context
from rlcheck.cli.requests.machines import RayRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.hygiene import made_safe
from rlcheck.facts.reach import WantedRun
from rlcheck.measure.cluster.boards import (
    DEFAULT_PORT,
    Also,
    is_client_address,
    open_hosts,
    parse_head,
    reach_of,
    survey_ray,
)
from rlcheck.measure.machine.context import ProbeContext

_SECTIONS = ("platform", "environ", "python", "ray", "network", "system")  # for the measurements and --start-help
_SURVEY_S = 8.0
_WHOLE_S = 28.0
"""All of this, however broken the network is: it is what somebody in front of a terminal still waits for."""


def run(request: RayRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: no head is known, or options that do not go together.
    """
    if request.hosts and (request.nodes or request.gpus_per_node):
        raise UserError("--nodes and --gpus-per-node ask a Ray cluster whether a run fits; give --head-ip, not --hosts")
    examination = begin(request.report, "ray")
    if request.report.facts is not None:
        nodes = recorded(request.report.facts)
        if all(facts.reach.value is None and facts.cluster.value is None for facts in nodes):
            raise UserError(f"--facts {request.report.facts}: nothing of a cluster in it; use `rlcheck ray --record`")
        return examination.conclude(nodes)
    context = make_context(request.report.python, deep=False)
    with Waiting() as waiting:
        waiting.on("this machine")
        gpus = ("nvidia",) if request.start_help else ()
        facts = examination.own_facts(context, (*_SECTIONS, *gpus))
        if request.start_help:
            return _start_help(facts, request)
        head, port = _head(request, facts)
        if head:
            waiting.on(f"{head}:{port}")
            wanted = WantedRun(nodes=request.nodes, gpus_per_node=request.gpus_per_node)
            also = Also(client=request.client or is_client_address(request.head_ip), dashboard=request.dashboard)
            found = reach_of(context, facts, head, port, request.report.timeout_s, wanted, also)
            facts = msgspec.structs.replace(facts, reach=made_safe("reach", known(found)))
        facts = _with_cluster(context, request, facts, waiting, examination.started)
    return examination.conclude((facts,))


def _start_help(facts: Facts, request: RayRequest) -> int:
    from rlcheck.measure.cluster.start_help import start_help

    sys.stdout.write(start_help(facts, request.head_ip, request.port or DEFAULT_PORT))
    return 0


def _head(request: RayRequest, facts: Facts) -> tuple[str, int]:
    """The head to examine, and its port; ("", 0) when only `--hosts` was given."""
    asked = "" if request.head_ip == "auto" else request.head_ip  # as in ray.init: what this machine knows
    given = asked or ("" if request.hosts else _known_head(facts))
    if not given and request.hosts:
        return "", 0
    if not given:
        raise UserError(
            "--head-ip: no head given, RAY_ADDRESS is not set and no Ray has run here; give the address that "
            "`ray start --head` printed, or --hosts FILE where no Ray runs yet"
        )
    return parse_head(given, request.port)


def _known_head(facts: Facts) -> str:
    """What this machine itself takes for the head: RAY_ADDRESS, or what the last `ray start` here left."""
    address = (facts.environ.value or {}).get("RAY_ADDRESS", "")
    if address and address not in ("auto", "local"):
        return address
    section = facts.ray.value
    return (section.current_cluster.value or "") if section is not None else ""


def _with_cluster(context: ProbeContext, request: RayRequest, facts: Facts, waiting: Waiting, started: float) -> Facts:
    """The facts, with what the machines say: those of `--hosts`, or the cluster's where a task can run."""
    from rlcheck.measure.cluster.survey import survey

    if request.hosts:
        board, via = open_hosts(request.hosts, request.report.python)
        with board:
            found = survey(board, via=via, deadline_s=_SURVEY_S, progress=waiting.on_names)
        return msgspec.structs.replace(facts, cluster=made_safe("cluster", known(found)))
    left_s = _WHOLE_S - (time.perf_counter() - started)
    return survey_ray(context, facts, interpreter(request.report.python), waiting, left_s)
