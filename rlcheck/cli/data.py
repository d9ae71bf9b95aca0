"""`rlcheck data`: every row of the data read before a GPU is held; judged, shown, and copied without what is wrong."""

from __future__ import annotations

import sys

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import begin
from rlcheck.cli.hydra_options import sorted_words
from rlcheck.cli.interpreter import interpreter
from rlcheck.cli.requests.configs import DataRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts
from rlcheck.measure.data.fixing import FixError, copies, refuse_existing, write
from rlcheck.measure.data.plan import Plan, Wanted, make_plan
from rlcheck.measure.data.survey import Survey, survey
from rlcheck.measure.data.workers import SILENCE_S, WorkersFailed


def run(request: DataRequest) -> int:
    """Run the command and return its exit code, which is about the files as they were before `--fix`.

    Raises:
        UserError: options, a config or files that cannot be used.
    """
    _refuse_nonsense(request)
    examination = begin(request.report, "data", alone=True)
    if request.report.facts is not None:
        lacking = "no data in it; `rlcheck data FILE --record` writes it"
        nodes = recorded_with(request.report.facts, ("data",), lacking)
        return examination.conclude(nodes)
    python = interpreter(request.report.python)
    files, overrides = sorted_words(request.words)
    wanted = Wanted(files, request.val, request.tokenizer, request.prompt_key, request.first)
    plan = make_plan(wanted, _config(request, overrides))
    with Waiting() as waiting:
        found = survey(plan, python, waiting.on, request.report.timeout_s or SILENCE_S)
    nodes = (document(data=known(found.facts)),)
    code = examination.conclude(nodes)
    if request.fix:
        sys.stdout.flush()
        _fix(request, found, plan, python)
    return code


def _refuse_nonsense(request: DataRequest) -> None:
    if (request.dry_run or request.yes or request.out is not None) and not request.fix:
        raise UserError("--dry-run, --yes and --out go with --fix")
    if request.report.facts is not None and (request.words or request.config or request.fix):
        raise UserError("--facts judges a record; leave files, --config and --fix out")


def _config(request: DataRequest, overrides: tuple[str, ...]) -> ConfigFacts | None:
    if not request.config:
        if overrides:
            raise UserError(f"{overrides[0]}: an override needs --config, and a file of that name does not exist")
        return None
    from rlcheck.measure.config.read import read_run

    return read_run(request.config, overrides, framework=request.framework)


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
