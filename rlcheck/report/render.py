"""From a report to text in one of the formats."""

from __future__ import annotations

from typing import TextIO

import msgspec

from rlcheck.finding import Report
from rlcheck.report.monitors import for_monitoring, monitored
from rlcheck.report.wording import cleaned, escaped


def render(report: Report, format: str, out: TextIO, *, verbose: bool = False, ascii_only: bool = False) -> None:
    """Write `report` to `out`.

    Args:
        report: what to show, already redacted.
        format: one of `rlcheck.cli.requests.report.Format`.
        out: where to.
        verbose: text and markdown also show what passed and what was skipped.
        ascii_only: text without any character outside ASCII.
    """
    if format == "json":
        out.write(as_json(report))
        return
    report = cleaned(report)
    if format == "text":
        from rlcheck.report.text import render_text

        render_text(report, out, verbose=verbose, ascii_only=ascii_only)
    elif format == "markdown":
        from rlcheck.report.markdown import render_markdown

        out.write(render_markdown(report, verbose))
    elif format == "junit":
        from rlcheck.report.junit import render_junit

        out.write(render_junit(report))
    elif format == "sarif":
        from rlcheck.report.sarif import render_sarif

        out.write(render_sarif(report))
    else:
        out.write(for_monitoring(monitored(report), format))


def as_json(report: msgspec.Struct) -> str:
    """A report of any command for programs: indented, with escapes for what a terminal would act on."""
    return escaped(msgspec.json.format(msgspec.json.encode(report), indent=2).decode()) + "\n"
