"""`rlcheck run`: the health of a training run, running or finished, from the metrics and samples that it wrote."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import msgspec

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import Examination, begin
from rlcheck.cli.requests.records import RunRequest
from rlcheck.errors import UserError
from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.finding import Report
from rlcheck.redact import redact


def run(request: RunRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a run that cannot be read at all.
    """
    _refuse_nonsense(request)
    examination = begin(request.report, "run", alone=True)
    if request.watch:
        return _watched(request, examination)
    nodes = _recorded(request) if request.report.facts is not None else (_read(request.target),)
    if request.compare:
        nodes = _side_by_side(nodes, _read(request.compare))
    report = examination.judge(nodes)
    if request.compare:
        report = _with_comparison(report, nodes)
    code = examination.end(report, nodes)
    if request.html is not None:
        sys.stdout.flush()
        _write_page(request.html, report, nodes)
    return code


def _side_by_side(nodes: tuple[Facts, ...], other: Facts) -> tuple[Facts, ...]:
    if len(nodes) != 1:
        raise UserError("--compare sets one run beside another; the record of --facts holds several")
    pair = (*nodes, other)
    return tuple(msgspec.structs.replace(facts, node=f"run {letter}") for letter, facts in zip("AB", pair, strict=True))


def _with_comparison(report: Report, nodes: tuple[Facts, ...]) -> Report:
    from rlcheck.measure.run.compare import compare
    from rlcheck.report.topics.run_compared import exhibits

    one, other = (facts.run.value or RunFacts() for facts in nodes)
    comparison = compare(one, other)
    data = {**report.data, "compare": msgspec.to_builtins(comparison)}
    return msgspec.structs.replace(report, exhibits=exhibits(comparison, one, other), data=data)


def _redacted(run: RunFacts) -> RunFacts:
    """Its words without secrets; numbers hold none, and there may be a million of them."""
    words = redact(msgspec.structs.replace(run, curves={}, ranks={}), RunFacts, os.environ)
    return msgspec.structs.replace(words, curves=run.curves, ranks=run.ranks)


def _write_page(path: Path, report: Report, nodes: tuple[Facts, ...]) -> None:
    """Write the page of `--html`.

    Raises:
        UserError: the file cannot be written.
    """
    from rlcheck.report.pages.run_page import page

    runs = [_redacted(facts.run.value or RunFacts()) for facts in nodes[:2]]
    try:
        path.write_text(page(redact(report, Report, os.environ), runs), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--html {path}: cannot be written: {error.strerror or error}; choose another place") from None
    sys.stderr.write(f"wrote {path}\n")


def _refuse_nonsense(request: RunRequest) -> None:
    if request.watch and (request.report.facts is not None or request.compare or request.html is not None):
        raise UserError("--watch follows one run; leave --facts, --compare and --html out")
    if request.html is not None and not request.html.parent.is_dir():
        raise UserError(f"--html {request.html}: there is no directory {request.html.parent}; choose another place")


def _watched(request: RunRequest, examination: Examination) -> int:
    from rlcheck.cli.watch import Watch

    if not request.target:
        raise UserError("--watch: give the RUN_DIR of a run")
    limits = (request.interval_s, request.stall_s, request.start_timeout_s, request.report.timeout_s)
    for option, value in zip(("--interval", "--stall-s", "--start-timeout", "--timeout"), limits, strict=True):
        if value is not None and not math.isfinite(value):
            raise UserError(f"{option} {value}: that would wait forever; give a number of seconds")
    return Watch(request, examination).follow()


def _recorded(request: RunRequest) -> tuple[Facts, ...]:
    if request.target:
        raise UserError("--facts judges a record; leave RUN_DIR out")
    assert request.report.facts is not None
    return recorded_with(request.report.facts, ("run",), "no run in it; `rlcheck run RUN_DIR --record` writes one")


def _read(target: str) -> Facts:
    """A document with what the run at `target` has left."""
    from rlcheck.measure.run.read import read_training
    from rlcheck.measure.step import proven_before

    if not target:
        raise UserError("give a RUN_DIR: the directory of a run, a metrics file, or --facts RECORD")
    training, proven = read_training(Path(target)), proven_before(Path(target))
    step = absent("no step was proven; rlcheck step RUN_DIR does it") if proven is None else known(proven)
    return document(run=known(training), step=step)
