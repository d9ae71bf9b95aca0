"""Where a report goes: standard output or a file, and what happens when neither takes it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from rlcheck.errors import UserError


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


def _write_utf8(stream: object) -> None:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8")  # pyright: ignore[reportUnknownMemberType]
