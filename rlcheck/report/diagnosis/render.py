"""From a diagnosis to text in one of the formats."""

from __future__ import annotations

from typing import TextIO

from rlcheck.report.diagnosis.report import DiagnosisReport
from rlcheck.report.render import as_json
from rlcheck.report.wording import cleaned


def render_diagnosis(
    report: DiagnosisReport, format: str, out: TextIO, *, verbose: bool = False, ascii_only: bool = False
) -> None:
    """Write `report`, which is redacted already, to `out`. Arguments as for `rlcheck.report.render.render`."""
    if format == "json":
        out.write(as_json(report))
        return
    report = cleaned(report)
    if format == "text":
        from rlcheck.report.diagnosis.text import render_text

        render_text(report, out, verbose=verbose, ascii_only=ascii_only)
    elif format == "markdown":
        from rlcheck.report.diagnosis.markdown import render_markdown

        out.write(render_markdown(report))
    elif format == "junit":
        from rlcheck.report.diagnosis.junit import render_junit

        out.write(render_junit(report))
    elif format == "sarif":
        from rlcheck.report.diagnosis.sarif import render_sarif

        out.write(render_sarif(report))
    else:
        from rlcheck.report.diagnosis.monitors import monitored
        from rlcheck.report.monitors import for_monitoring

        out.write(for_monitoring(monitored(report), format))
