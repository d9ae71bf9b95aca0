"""`rlcheck nccl`: what the machines are, then real collectives between them, judged and shown."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rlcheck.cli.facts_files import recorded
from rlcheck.cli.front_door import Examination, begin
from rlcheck.cli.interpreter import make_context
from rlcheck.cli.plotting import require_plottable
from rlcheck.cli.requests.machines import NcclRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import DOCTOR_FAILED, USAGE_ERROR, UserError
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.measure.cluster.boards import is_here, open_machines, others
from rlcheck.measure.cluster.survey import survey
from rlcheck.measure.cluster.switchboard import Switchboard
from rlcheck.measure.collectives.gathering import Follower, is_gathered, open_gathered
from rlcheck.measure.collectives.measuring import measure
from rlcheck.measure.collectives.plan import Request

_SECTIONS = ("python", "nvidia", "ray")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d{1,12})\s*([kmgt]?)i?b?", re.I)
_SURVEY_S = 10.0


def run(request: NcclRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or machines that cannot be reached at all.
    """
    max_bytes = parse_size(request.max_size) if request.max_size else 0
    if request.plot is not None:
        require_plottable(request.plot)
    if is_gathered(os.environ) and not (request.hosts or request.head_ip or request.report.facts):
        return _among_ranks(request, max_bytes)
    examination = begin(request.report, "nccl")
    if request.report.facts is not None:
        return _ended(request, examination, recorded(request.report.facts))
    context = make_context(request.report.python, deep=False)
    with Waiting() as waiting:
        waiting.on("this machine")
        facts = examination.own_facts(context, _SECTIONS)
        board, launcher = open_machines(request.head_ip, request.port, request.hosts, context, facts)
        with board:
            nodes = _measured(request, max_bytes, board, launcher, facts, waiting)
    return _ended(request, examination, nodes)


def _among_ranks(request: NcclRequest, max_bytes: int) -> int:
    """Under torchrun or srun, where this command runs once per rank: rank 0 measures and reports, the others serve."""
    with Waiting() as waiting:
        waiting.on("the other ranks")
        board = open_gathered(os.environ)
        if isinstance(board, Follower):
            return board.serve()
    code = DOCTOR_FAILED
    try:
        examination = begin(request.report, "nccl")
        with Waiting() as waiting, board:
            waiting.on("this machine")
            context = make_context(request.report.python, deep=False)
            facts = examination.own_facts(context, _SECTIONS)
            nodes = _measured(request, max_bytes, board, board.launcher, facts, waiting)
        code = _ended(request, examination, nodes)
    except UserError:
        code = USAGE_ERROR
        raise
    finally:
        board.announce(code)
    return code


def _ended(request: NcclRequest, examination: Examination, nodes: tuple[Facts, ...]) -> int:
    """Show the report, then draw: a picture that fails must not cost the report."""
    if all(facts.collectives.value is None for facts in nodes):
        raise UserError(f"--facts {request.report.facts}: no collectives in it; `rlcheck nccl --record` writes them")
    # A machine alone is compared with nobody.
    alone = all(facts.cluster.value is None or facts.cluster.value.via == "local" for facts in nodes)
    sections = ("collectives",) if alone else ("cluster", "collectives")
    code = examination.conclude(nodes, sections)
    if request.plot is not None:
        sys.stdout.flush()
        _draw(nodes, request.plot)
    return code


def parse_size(text: str) -> int:
    """Bytes of `64MiB`, `4G`, `1048576`: units are powers of 1024.

    Raises:
        UserError: no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) * _UNITS[match[2].lower()] < 8:
        raise UserError(f"--max-size {text}: no size of at least 8 bytes; write it like 64MiB or 4GiB")
    return int(match[1]) * _UNITS[match[2].lower()]


def _measured(
    request: NcclRequest, max_bytes: int, board: Switchboard, launcher: str, facts: Facts, waiting: Waiting
) -> tuple[Facts, ...]:
    """The facts documents of all machines; what was measured between them is in the first."""
    found = survey(board, via=launcher, worker_ports=None, deadline_s=_SURVEY_S, progress=waiting.on_names)
    more = others(board, found, facts, waiting)
    plan = Request(
        launcher=launcher,
        backend=request.backend.value,
        quick=request.quick,
        max_bytes=max_bytes,
        ranks_per_node=request.ranks_per_node,
        step_timeout_s=request.step_timeout_s,
        pairs=request.pairs.value,
    )
    done = measure(board, plan, waiting.on_names)
    # One name for this machine, too: that by which the findings know it.
    name = next((member.name for member in found.members if is_here(member, facts)), facts.node)
    return msgspec.structs.replace(facts, node=name, cluster=known(found), collectives=known(done)), *more


def _draw(nodes: Sequence[Facts], path: Path) -> None:
    from rlcheck.report.pages.collectives_plots import write_plot

    measured = next((facts for facts in nodes if facts.collectives.value is not None), None)
    if measured is None:
        raise UserError(f"--plot {path}: there are no measured collectives in these facts")
    write_plot(measured, path)
