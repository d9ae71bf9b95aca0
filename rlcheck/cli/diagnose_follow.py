"""`rlcheck diagnose --follow`: says what went wrong while the log is being written, each thing once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

import msgspec

from rlcheck.cli.consultation import Consultation
from rlcheck.diagnose.follow import APPEAR, follow
from rlcheck.diagnose.model import CondensedLog
from rlcheck.errors import UserError
from rlcheck.redact import redact
from rlcheck.report.diagnosis.report import DiagnosisReport
from rlcheck.report.diagnosis.text import render_end, render_news, render_text
from rlcheck.report.wording import clean, cleaned


def follow_log(consultation: Consultation) -> int:
    """Print each new diagnosis as it appears, until the log ends, falls silent, or Ctrl-C; returns the exit code.

    Raises:
        UserError: more than one log is given, or it cannot be followed.
    """
    name, *others = consultation.logs
    if others:
        raise UserError("--follow reads one log; start it once for each")
    timeout_s = consultation.request.timeout_s
    appear = APPEAR if timeout_s is None else min(APPEAR, timeout_s)
    told: set[str] = set()
    report = consultation.report((CondensedLog(name, ()),))
    try:
        for log in follow(name, consultation.index, timeout=timeout_s, appear=appear, waiting=_say):
            report = consultation.report((log,))
            news = _news(report, told)
            if news.diagnoses or news.unknown is not None:
                _print(render_news, news, consultation)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    _print(render_end if told else render_text, report, consultation)
    return report.exit_code


def _news(report: DiagnosisReport, told: set[str]) -> DiagnosisReport:
    """What of `report` was not told yet; it is from now on."""
    diagnoses = tuple(found for found in report.diagnoses if found.id not in told)
    told.update(found.id for found in diagnoses)
    unknown = report.unknown
    if unknown is not None:
        key = f"line {unknown.evidence[0].line}" if unknown.evidence else "unknown"
        unknown = None if key in told else unknown
        told.add(key)
    return msgspec.structs.replace(report, diagnoses=diagnoses, unknown=unknown)


def _print(render: Callable[..., None], report: DiagnosisReport, consultation: Consultation) -> None:
    request = consultation.request
    out: TextIO = sys.stdout
    safe = cleaned(redact(report, DiagnosisReport, os.environ))
    render(safe, out, verbose=request.verbose, ascii_only=request.ascii_only)
    out.flush()


def _say(message: str) -> None:
    sys.stderr.write(f"rlcheck: {clean(message)}\n")
