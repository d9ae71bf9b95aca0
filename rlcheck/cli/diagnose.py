"""`rlcheck diagnose`: logs in, the cause out; confirmed by facts, and worded for the run's config, if given."""

from __future__ import annotations

import os

from rlcheck.cli.consultation import prepare
from rlcheck.cli.output import put
from rlcheck.cli.requests.records import DiagnoseRequest
from rlcheck.cli.requests.report import Format
from rlcheck.diagnose.condense import read_logs
from rlcheck.redact import redact
from rlcheck.report.diagnosis.render import render_diagnosis
from rlcheck.report.diagnosis.report import DiagnosisReport


def run(request: DiagnoseRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that do not go together, or a log, a config or facts that cannot be read.
    """
    consultation = prepare(request)
    if request.follow:
        from rlcheck.cli.diagnose_follow import follow_log

        return follow_log(consultation)
    report = consultation.report(read_logs(consultation.logs, consultation.index))
    _show(report, consultation.request)
    return report.exit_code


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
        utf8=request.format is not Format.TEXT,
    )
