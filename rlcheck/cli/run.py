"""`rlcheck run`: the health of a training run, running or finished, from the metrics and samples that it wrote."""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from rlcheck import __version__
from rlcheck.cli.active import ReportRequest, judged, recorded, write_record
from rlcheck.cli.app import UserError
from rlcheck.cli.env import show
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.training import TrainingFacts
from rlcheck.redact import redact
from rlcheck.report.model import Report

FAMILIES = ("DRF", "RUN")


@dataclass(frozen=True)
class RunRequest:
    """The options of one call, as in `rlcheck run --help`."""

    report: ReportRequest
    target: str = ""
    watch: bool = False
    interval_s: float = 5.0
    stall_s: float = 600.0
    start_timeout_s: float = 1800.0
    compare: str = ""
    html: Path | None = None


def run_run(request: RunRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a run that cannot be read at all.
    """
    started = time.perf_counter()
    _refuse_nonsense(request)
    if request.watch:
        return _watched(request)
    nodes = _recorded(request) if request.report.facts is not None else (document(read(request.target)),)
    if request.compare:
        nodes = _side_by_side(nodes, document(read(request.compare)))
    report = judged(request.report, nodes, FAMILIES, "run", started, alone=True)
    if request.compare:
        report = _with_comparison(report, nodes)
    show(report, request.report.format, request.report.output, request.report.verbose, request.report.ascii_only)
    if request.report.record is not None:
        write_record(request.report.record, nodes)
    if request.html is not None:
        sys.stdout.flush()
        _write_page(request.html, report, nodes)
    return report.exit_code


def _side_by_side(nodes: tuple[Facts, ...], other: Facts) -> tuple[Facts, ...]:
    if len(nodes) != 1:
        raise UserError("--compare sets one run beside another; the record of --facts holds several")
    pair = (*nodes, other)
    return tuple(msgspec.structs.replace(facts, node=f"run {letter}") for letter, facts in zip("AB", pair, strict=True))


def _with_comparison(report: Report, nodes: tuple[Facts, ...]) -> Report:
    from rlcheck.curves.compare import compare
    from rlcheck.report.compare_exhibits import exhibits

    one, other = (facts.training.value or TrainingFacts() for facts in nodes)
    comparison = compare(one, other)
    data = {**report.data, "compare": msgspec.to_builtins(comparison)}
    return msgspec.structs.replace(report, exhibits=exhibits(comparison, one, other), data=data)


def _redacted(run: TrainingFacts) -> TrainingFacts:
    """Its words without secrets; numbers hold none, and there may be a million of them."""
    words = redact(msgspec.structs.replace(run, curves={}, ranks={}), TrainingFacts, os.environ)
    return msgspec.structs.replace(words, curves=run.curves, ranks=run.ranks)


def _write_page(path: Path, report: Report, nodes: tuple[Facts, ...]) -> None:
    """Write the page of `--html`.

    Raises:
        UserError: the file cannot be written.
    """
    from rlcheck.report.run_page import page

    runs = [_redacted(facts.training.value or TrainingFacts()) for facts in nodes[:2]]
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


def _watched(request: RunRequest) -> int:
    from rlcheck.cli.watch import Watch

    if not request.target:
        raise UserError("--watch: give the RUN_DIR of a run")
    report = request.report
    limits = (request.interval_s, request.stall_s, request.start_timeout_s, report.timeout_s)
    for option, value in zip(("--interval", "--stall-s", "--start-timeout", "--timeout"), limits, strict=True):
        if value is not None and not math.isfinite(value):
            raise UserError(f"{option} {value}: it would be waited for ever; give a number of seconds")
    return Watch(request.target, report, *limits).follow()


def _recorded(request: RunRequest) -> tuple[Facts, ...]:
    if request.target:
        raise UserError("--facts judges a record; leave RUN_DIR out")
    return training_records(request.report.facts)


def training_records(path: Path | None) -> tuple[Facts, ...]:
    """The documents of `--facts` that hold a run.

    Raises:
        UserError: the file cannot be used, or holds none.
    """
    assert path is not None
    nodes = tuple(facts for facts in recorded(path) if facts.training.value is not None)
    if not nodes:
        raise UserError(f"--facts {path}: no run in it; `rlcheck run RUN_DIR --record` writes one")
    return nodes


def read(target: str) -> TrainingFacts:
    """What the run at `target` has left.

    Raises:
        UserError: no run is named, or it cannot be read at all.
    """
    from rlcheck.curves.read import CurveError, read_training

    if not target:
        raise UserError("give a RUN_DIR: the directory of a run, a metrics file, or --facts RECORD")
    try:
        return read_training(Path(target))
    except CurveError as error:
        raise UserError(str(error)) from None


def document(training: TrainingFacts) -> Facts:
    """A document of this machine with nothing but the run in it."""
    return Facts(
        rlcheck_version=__version__,
        node=socket.gethostname(),
        collected_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        training=known(training),
    )
