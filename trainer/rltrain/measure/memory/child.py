"""A process of a measurement: one JSON request on standard input, one JSON answer on a descriptor of its own."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from rltrain.core.errors import RunFailure, UserError, kind_and_line

ANSWER_FD = "RLTRAIN_ANSWER_FD"
"""Names the descriptor: what libraries print to standard output is no answer."""
R = TypeVar("R")


def answer(kind: type[R], measure: Callable[[R], dict[str, Any]]) -> NoReturn:
    """Answer a request of KIND with what MEASURE finds, and end the process: threads of NCCL may outlive a rank."""
    found: dict[str, Any]
    try:
        found = measure(msgspec.json.decode(sys.stdin.buffer.read(), type=kind))
        found["host_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    except (UserError, RunFailure) as error:
        found = {"error": str(error)}
    except Exception as error:  # a library's own, of whatever kind: its first line is the answer
        traceback.print_exc()
        found = {"error": kind_and_line(error)}
    with os.fdopen(int(os.environ[ANSWER_FD]), "wb") as out:
        out.write(msgspec.json.encode(found, enc_hook=str) + b"\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
