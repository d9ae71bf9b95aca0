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
from rlcheck.report.render import render


def put(write: Callable[[TextIO], None], output: Path | None, *, utf8: bool) -> None:
    """Let `write` write to `output`, or to standard output without one.

    Args:
        write: is given the stream.
        output: the file.
        utf8: standard output is UTF-8, whatever the locale: for what programs read.

    Raises:
        UserError: the file cannot be written.
    """
    if output is None:
        if utf8:
            _write_utf8(sys.stdout)
        try:
            write(sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has gone (`rlcheck env | head`): that changes nothing about what was found.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    try:
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
        utf8=request.format is not Format.TEXT,
    )


def _write_utf8(stream: object) -> None:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8")  # pyright: ignore[reportUnknownMemberType]
