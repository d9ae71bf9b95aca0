"""`rlcheck diagnose`: logs in, the cause out; confirmed by facts, and worded for the run's config, if given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlcheck.cli.consultation import prepare
from rlcheck.cli.output import put
from rlcheck.cli.requests.answers import DiagnoseRequest
from rlcheck.cli.requests.report import Format
from rlcheck.diagnose.condense import read_logs
from rlcheck.diagnose.model import CondensedLog
from rlcheck.errors import UserError
from rlcheck.redact import redact
from rlcheck.report.diagnosis.monitors import monitored
from rlcheck.report.diagnosis.render import render_diagnosis
from rlcheck.report.diagnosis.report import DiagnosisReport

if TYPE_CHECKING:  # brings readers of dumps; most calls have none
    from rlcheck.diagnose.hang.find import Found

_STRANGE_SHARE = 0.3  # of random bytes and of programs nearly half cannot be decoded, of logs in UTF-8 none


def run(request: DiagnoseRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that do not go together, or a log, a config or facts that cannot be read.
    """
    consultation = prepare(request)
    if request.follow:
        from rlcheck.cli.diagnose_follow import follow_log

        return follow_log(consultation)
    dumps = _dumps(consultation.logs)
    logs = read_logs(consultation.logs, consultation.index, dumps.files if dumps else frozenset())
    report = consultation.report(logs, dumps)
    if not report.diagnoses and report.unknown is None and not (dumps and dumps.files):
        _refuse_what_is_no_log(logs)
    _show(report, consultation.request)
    return monitored(report).state if request.format is Format.NAGIOS else report.exit_code


def _dumps(paths: Sequence[str]) -> Found | None:
    """What dumps of ranks say that PATHS hold; nothing of standard input, which needs no reader of them."""
    if set(paths) == {"-"}:
        return None
    from rlcheck.diagnose.hang.find import look

    return look(paths)


def _refuse_what_is_no_log(logs: Sequence[CondensedLog]) -> None:
    """Raise UserError where no line of text was read at all: "no error" would be no answer."""
    full = [log for log in logs if log.total_bytes]
    if logs and not full and not any(log.problem for log in logs):
        which = "all of these logs are" if len(logs) > 1 else f"{logs[0].name}: the log is"
        raise UserError(f"{which} empty; give the log of the run, or pipe its output in")
    if full and not any(map(_is_text, full)):
        raise UserError(f"{full[0].name}: this is no text; give the log of the run")


def _is_text(log: CondensedLog) -> bool:
    """Whether most of it could be decoded."""
    sample = "".join(line.text for line in log.lines[:200])[:20_000]
    return sample.count("\ufffd") <= _STRANGE_SHARE * len(sample)


def _show(report: DiagnosisReport, request: DiagnoseRequest) -> None:
    """Print or write the report, secrets removed.

    Raises:
        UserError: the output file cannot be written.
    """
    clean = redact(report, DiagnosisReport, os.environ)
    put(
        lambda out: render_diagnosis(
            clean, request.format.value, out, verbose=request.verbose, ascii_only=request.ascii_only
        ),
        request.output,
        request.format,
    )
