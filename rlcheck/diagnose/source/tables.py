"""A failure without a place in any source: error numbers, signals, exit codes and the status names of GPU libraries."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence

from rlcheck.diagnose.decode import decoded
from rlcheck.diagnose.failures import Failure
from rlcheck.diagnose.lines import Message
from rlcheck.diagnose.model import Diagnosis, Quote

_LEFT = r"\b(?:[Ee]xit(?:ed)?(?: with)?(?: exit)?[ _]?(?:code|status)[:=]? ?|signal[ :=]{1,2}|with code )"
_TABLES = {
    "status": (
        "GPU library statuses",
        re.compile(r"\b((?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_[A-Z_]+|hipError\w+|nccl[A-Z]\w*Error)\b"),
    ),
    "cuda_error": ("CUDA error codes", re.compile(r"\bCUDA (?:driver )?error(?: code)?[:=]? ?\(?(\d{1,3})\b")),
    "errno": ("error numbers", re.compile(r"\b[Ee]rrno\b[ =:]{1,3}(\d{1,3})\b")),
    "exit_code": ("signals and exit codes", re.compile(_LEFT + r"\(?(-?\d{1,3}|SIG[A-Z]+)\b")),
}
"""By the group that the decoders know: what the table is of, and what holds a value of it."""


def from_table(failure: Failure, quote: Callable[[Sequence[Message]], Quote]) -> Diagnosis | None:
    """What the doctor's tables say of a number or a name in the message of FAILURE; None if it holds none."""
    for group, (table, form) in _TABLES.items():
        found = form.search(failure.message.text)
        if found is None:
            continue
        value = found[1]
        if group == "exit_code" and "signal" in found[0] and value.isdecimal():
            value = f"-{value}"
        meaning = decoded({group: value}).get(f"{group.removesuffix('_code')}_meaning", "")
        if not meaning:
            continue
        name = errno.errorcode.get(int(value), value) if group == "errno" else found[1]
        return Diagnosis(
            id=f"source-{group.replace('_', '-')}",
            title=f"{name}: {meaning}",
            status="fail",
            cause=f"From the table of {table}: {name} means: {meaning}. The log does not show what led to it.",
            confidence="low",
            evidence=(quote([failure.message]),),
            basis="source",
        )
    return None
