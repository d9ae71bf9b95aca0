"""The machine that a command examines, and the Python that `--python` names."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from rlcheck.errors import UserError
from rlcheck.measure.machine.context import ProbeContext


def make_context(python: str, deep: bool) -> ProbeContext:
    """The machine, and the Python that `--python` names.

    Raises:
        UserError: there is no such interpreter or environment.
    """
    return ProbeContext(python=interpreter(python), deep=deep)


def interpreter(python: str) -> tuple[str, ...]:
    """The command line that starts the Python to examine; empty for the doctor's own.

    Raises:
        UserError: a directory without bin/python, or a path that does not exist.
    """
    if not python:
        return ()
    path = Path(python).expanduser()
    if os.path.isdir(path):
        for name in ("bin/python", "bin/python3"):
            if os.access(path / name, os.X_OK):
                return (str(path / name),)
        raise UserError(
            f"--python {python}: a directory without bin/python; name a venv, a conda environment or an interpreter"
        )
    try:
        words = (str(path),) if os.path.exists(path) else tuple(shlex.split(python))
    except ValueError as error:
        raise UserError(f"--python {python}: {error}") from None
    if not words:
        raise UserError("--python: names no interpreter")
    if os.sep in words[0] and not os.access(words[0], os.X_OK):
        raise UserError(f"--python {python}: no such interpreter; name one that can be executed")
    return words
