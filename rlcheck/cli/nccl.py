"""`rlcheck nccl`: what the machines are, then real collectives between them, judged and shown."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rlcheck.cli.active import ReportRequest, Waiting, judge_and_show, own_facts, recorded
from rlcheck.cli.app import USAGE_ERROR, UserError
from rlcheck.cli.env import make_context
from rlcheck.cli.plotting import require_plottable
from rlcheck.cluster.boards import is_here, open_machines, others
from rlcheck.cluster.survey import survey
from rlcheck.cluster.switchboard import Switchboard
from rlcheck.collectives.engine import measure
from rlcheck.collectives.gathering import Follower, is_gathered, open_gathered
from rlcheck.collectives.plan import Request
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts

FAMILIES = ("NET", "NCL")
_SECTIONS = ("python", "nvidia", "ray")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d{1,12})\s*([kmgt]?)i?b?", re.I)
_SURVEY_S = 10.0


@dataclass(frozen=True)
class NcclRequest:
    """The options of one call, as in `rlcheck nccl --help`."""

    report: ReportRequest
    head_ip: str = ""
    port: int | None = None
    hosts: str = ""
    backend: str = "auto"
    quick: bool = False
    max_size: str = ""
    ranks_per_node: int = 0
    pairs: str = "auto"
    step_timeout_s: float = 30.0
    plot: Path | None = None


def run_nccl(request: NcclRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or machines that cannot be reached at all.
    """
    started = time.perf_counter()
    max_bytes = parse_size(request.max_size) if request.max_size else 0
    if request.plot is not None:
        require_plottable(request.plot)
    if request.report.facts is not None:
        return _judged(request, recorded(request.report.facts), started)
    if is_gathered(os.environ) and not (request.hosts or request.head_ip):
        return _among_ranks(request, max_bytes, started)
    context = make_context(request.report.python, deep=False)
    with Waiting() as waiting:
        waiting.on("this machine")
        facts = own_facts(context, request.report, FAMILIES, _SECTIONS)
        board, launcher = open_machines(request.head_ip, request.port, request.hosts, context, facts)
        with board:
            nodes = _measured(request, max_bytes, board, launcher, facts, waiting)
    return _judged(request, nodes, started)


def _among_ranks(request: NcclRequest, max_bytes: int, started: float) -> int:
    """Under torchrun or srun, where this command runs once per rank: rank 0 measures and reports, the others serve."""
    with Waiting() as waiting:
        waiting.on("the other ranks")
        board = open_gathered(os.environ)
        if isinstance(board, Follower):
            return board.serve()
        with board:
            context = make_context(request.report.python, deep=False)
            facts = own_facts(context, request.report, FAMILIES, _SECTIONS)
            nodes = _measured(request, max_bytes, board, board.launcher, facts, waiting)
    code = USAGE_ERROR
    try:
        code = _judged(request, nodes, started)
    finally:
        board.announce(code)
    return code


def _judged(request: NcclRequest, nodes: tuple[Facts, ...], started: float) -> int:
    """Show the report, then draw: a picture that fails must not cost the report."""
    if all(facts.collectives.value is None for facts in nodes):
        raise UserError(f"--facts {request.report.facts}: no collectives in it; `rlcheck nccl --record` writes them")
    # A machine alone is compared with nobody.
    alone = all(facts.cluster.value is None or facts.cluster.value.via == "local" for facts in nodes)
    sections = ("collectives",) if alone else ("cluster", "collectives")
    code = judge_and_show(request.report, nodes, FAMILIES, "nccl", started, sections=sections)
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
        backend=request.backend,
        quick=request.quick,
        max_bytes=max_bytes,
        ranks_per_node=request.ranks_per_node,
        step_timeout_s=request.step_timeout_s,
        pairs=request.pairs,
    )
    done = measure(board, plan, waiting.on_names)
    # One name for this machine, too: that by which the findings know it.
    name = next((member.name for member in found.members if is_here(member, facts)), facts.node)
    return msgspec.structs.replace(facts, node=name, cluster=known(found), collectives=known(done)), *more


def _draw(nodes: Sequence[Facts], path: Path) -> None:
    from rlcheck.report.plots import write_plot

    measured = next((facts for facts in nodes if facts.collectives.value is not None), None)
    if measured is None:
        raise UserError(f"--plot {path}: there are no measured collectives in these facts")
    write_plot(measured, path)
