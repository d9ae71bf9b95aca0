"""`rlcheck data`: every row of the data read before a GPU is held; judged, shown, and copied without what is wrong."""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rlcheck import __version__
from rlcheck.cli.active import ReportRequest, Waiting, judge_and_show, recorded
from rlcheck.cli.app import UserError
from rlcheck.cli.env import interpreter
from rlcheck.cli.hydra_options import sorted_words
from rlcheck.dataset.fixing import FixError, copies, refuse_existing, write
from rlcheck.dataset.plan import Plan, PlanError, Wanted, make_plan
from rlcheck.dataset.survey import Survey, survey
from rlcheck.dataset.workers import SILENCE_S, WorkersFailed
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.runs.errors import ReadError

FAMILIES = ("DAT",)


@dataclass(frozen=True)
class DataRequest:
    """The options of one call, as in `rlcheck data --help`."""

    report: ReportRequest
    words: tuple[str, ...] = ()
    config: str = ""
    val: tuple[str, ...] = ()
    tokenizer: str = ""
    prompt_key: str = ""
    framework: str = "auto"
    first: int = 5
    fix: bool = False
    dry_run: bool = False
    yes: bool = False
    out: Path | None = None


def run_data(request: DataRequest) -> int:
    """Run the command and return its exit code, which is about the files as they were before `--fix`.

    Raises:
        UserError: options, a config or files that cannot be used.
    """
    started = time.perf_counter()
    _refuse_nonsense(request)
    if request.report.facts is not None:
        nodes = tuple(facts for facts in recorded(request.report.facts) if facts.dataset.value is not None)
        if not nodes:
            raise UserError(f"--facts {request.report.facts}: no data in it; `rlcheck data FILE --record` writes it")
        return judge_and_show(request.report, nodes, FAMILIES, "data", started, alone=True)
    python = interpreter(request.report.python)
    files, overrides = sorted_words(request.words)
    run = _run(request, overrides)
    wanted = Wanted(files, request.val, request.tokenizer, request.prompt_key, request.first)
    try:
        plan = make_plan(wanted, run)
        with Waiting() as waiting:
            found = survey(plan, python, waiting.on, request.report.timeout_s or SILENCE_S)
    except (PlanError, WorkersFailed) as error:
        raise UserError(str(error)) from None
    facts = Facts(
        rlcheck_version=__version__,
        node=socket.gethostname(),
        collected_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        dataset=known(found.facts),
    )
    code = judge_and_show(request.report, (facts,), FAMILIES, "data", started, alone=True)
    if request.fix:
        sys.stdout.flush()
        _fix(request, found, plan, python)
    return code


def _refuse_nonsense(request: DataRequest) -> None:
    if (request.dry_run or request.yes or request.out is not None) and not request.fix:
        raise UserError("--dry-run, --yes and --out go with --fix")
    if request.report.facts is not None and (request.words or request.config or request.fix):
        raise UserError("--facts judges a record; leave files, --config and --fix out")


def _run(request: DataRequest, overrides: tuple[str, ...]) -> RunFacts | None:
    if not request.config:
        if overrides:
            raise UserError(f"{overrides[0]}: an override needs --config, and a file of that name does not exist")
        return None
    from rlcheck.runs.read import read_run

    try:
        return read_run(request.config, overrides, framework=request.framework)
    except ReadError as error:
        raise UserError(str(error)) from None


def _fix(request: DataRequest, found: Survey, plan: Plan, python: tuple[str, ...]) -> None:
    """Write the copies, or say what would be written."""
    try:
        planned = copies(found, plan, request.out)
        verb = "would write" if request.dry_run else "wrote"
        if not request.dry_run:
            if not request.yes:
                refuse_existing(planned)
            write(planned, plan, python)
    except (FixError, WorkersFailed) as error:
        raise UserError(f"--fix: {error}") from None
    for copy in planned:
        sys.stderr.write(f"{verb} {copy.line()}\n")
