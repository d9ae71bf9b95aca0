"""Calls of rlcheck by rlcheck: a command in a process of its own, with a deadline, and its JSON."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rlcheck.errors import USAGE_ERROR, UserError

_ROOT = str(Path(__file__).resolve().parents[2])
_MOST_WORDS = 400


def answered(words: Sequence[str], *, seconds: float, cwd: str | Path | None = None) -> bytes:
    """What the command of WORDS writes to standard output; exit codes 0 and 1 are answers, 2 may be one.

    Raises:
        UserError: it says why it has none, in one line, or it did not answer within SECONDS.
    """
    paths = os.pathsep.join(filter(None, (_ROOT, os.path.join(_ROOT, "trainer"), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1"}
    command = [sys.executable, "-m", "rlcheck", *words]
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"rlcheck {words[0]} did not answer within {seconds:.0f} s") from None
    except OSError as error:
        raise UserError(f"rlcheck {words[0]} could not be started: {error.strerror}") from None
    if done.returncode in (0, 1) or (done.returncode == USAGE_ERROR and done.stdout):  # the verdict of `hang`
        return done.stdout
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
    raise UserError(lines[-1].removeprefix("rlcheck: ")[:_MOST_WORDS])
