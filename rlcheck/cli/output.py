"""Where a report goes: standard output or a file, and what happens when neither takes it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from rlcheck.cli.requests.report import Format, ReportRequest
from rlcheck.cli.waiting import clear_line
from rlcheck.errors import UserError
from rlcheck.finding import Report
from rlcheck.redact import redact
from rlcheck.report.monitors import monitored
from rlcheck.report.render import render


def put(write: Callable[[TextIO], None], output: Path | None, format: Format) -> None:
    """Let `write` write to `output`, or to standard output without one.

    What programs read (any format but text) is UTF-8, whatever the locale; what a collector polls is never half there.

    Args:
        write: is given the stream.
        output: the file.
        format: of what is written.

    Raises:
        UserError: the file cannot be written.
    """
    if output is None:
        if format is not Format.TEXT:
            _write_utf8(sys.stdout)
        try:
            write(sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has gone (`rlcheck env | head`): that changes nothing about what was found.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    try:
        if format is Format.PROMETHEUS and (output.is_file() or not output.exists()):
            _at_once(write, Path(os.path.realpath(output)))
            return
        with open(output, "w", encoding="utf-8") as file:
            write(file)
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror or error}") from None


def show(report: Report, request: ReportRequest) -> None:
    """Print or write the report, secrets removed.

    Raises:
        UserError: the output file cannot be written.
    """
    clear_line()
    clean = redact(report, type(report), os.environ)
    put(
        lambda out: render(clean, request.format.value, out, verbose=request.verbose, ascii_only=request.ascii_only),
        request.output,
        request.format,
    )


def ended(report: Report, request: ReportRequest) -> int:
    """The exit code: that of the report, or of a plug-in where Nagios reads it."""
    return monitored(report).state if request.format is Format.NAGIOS else report.exit_code


def _at_once(write: Callable[[TextIO], None], path: Path) -> None:
    """Replace the file PATH as a whole, by one beside it whose name no collector looks for."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "w", encoding="utf-8") as file:
            write(file)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _write_utf8(stream: object) -> None:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8")  # pyright: ignore[reportUnknownMemberType]
