"""Why a run broke: `rlcheck diagnose` over the logs of its own processes, in a few lines."""

from __future__ import annotations

import os
import re
import shlex
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from rlcheck.diagnose.answer import diagnose as read_logs
from rlcheck.diagnose.condense import Growing
from rlcheck.diagnose.lines import read_line
from rlcheck.diagnose.model import Answer, CondensedLog, Diagnosis, LogLine, Quote
from rlcheck.diagnose.signatures import Index, load
from rlcheck.playbook import Library
from rlcheck.redact import redact_bytes
from rlcheck.report.wording import clean
from rltrain.core.errors import RunFailure, kind_and_line

CONTROLLER_LOG = "controller.log"
TAIL_BYTES = 8 << 20
"""Of each log, so much is read: what ended the run is at the end."""
MOST_LOGS = 64
WHOLE_BYTES = 256 << 10
"""Of more than this, only the surroundings of lines that may matter are looked at."""
DEADLINE_S = 20.0
"""The user waits for the message of the failure: without an answer by then, it comes without a cause."""
MAX_LINE = 300
HEADER = re.compile(rb"^== \S+, process \d+, ", re.M)
"""The first line of each process in a log; an earlier run may have written above it."""
_KILLED = "was killed by SIG"


def failure_words(error: Exception, logs: Path) -> str:
    """ERROR for the user. One that nobody foresaw leaves its traceback in LOGS/controller.log."""
    if isinstance(error, RunFailure):
        return str(error)
    log = logs / CONTROLLER_LOG
    line = kind_and_line(error)
    try:
        log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError as why:
        return f"{line}; its traceback could not be kept: {why.strerror}"
    return f"{line}; its traceback: {log}"


def diagnose(logs: Path, since: float, message: str, *, deadline_s: float = DEADLINE_S) -> list[str]:
    """Lines that name the likely cause, as far as it can be read.

    Args:
        logs: directory of the logs of the run's processes.
        since: when the run began (Unix time); logs that are older say nothing.
        message: of the failure. The log that it names is read first; where it names none, it says itself what broke.
            What it says already is not said again.
        deadline_s: seconds after which it is given up.
    """
    said: list[str] = []
    # A thread that is left behind ends with the process, which has nothing else to do any more.
    thread = threading.Thread(target=_diagnose, args=(logs, since, message, said), daemon=True, name="diagnosis")
    thread.start()
    thread.join(deadline_s)
    return [] if thread.is_alive() else said


def _diagnose(logs: Path, since: float, message: str, said: list[str]) -> None:
    try:
        index, library = _failures(load()), Library()
        found = _logs(logs, since, message, index)
        answer = read_logs(found, index, library)
        itself = read_logs([_as_log(message)], index, library)
        # Who was killed from outside has written nothing about it.
        if _root(itself) is not None and (_KILLED in message or _root(answer) is None):
            answer = itself
        said += _lines(answer, message, logs, found)
    except Exception as error:  # whatever becomes of the diagnosis, the failure itself must be reported
        said.append(f"(its diagnosis broke off: {kind_and_line(error)})")


def _failures(index: Index) -> Index:
    """INDEX without what libraries only warn of: no cause of an end, whatever playbook knows it."""
    books = (book.of_failures() for book in index.playbooks)
    return Index(tuple(book for book in books if book.signatures))


def _logs(logs: Path, since: float, message: str, index: Index) -> list[CondensedLog]:
    """What the processes of this run have written, the log that MESSAGE names first; alone, if a signal killed it."""
    found = [log for log in sorted(logs.glob("*.log")) if log.stat().st_mtime >= since]
    named = [log for log in found if log.name in message]
    if not named:
        return []
    others = [] if _KILLED in message else [log for log in found if log not in named]
    return [_read(log, index) for log in [*named, *others][:MOST_LOGS]]


def _read(log: Path, index: Index) -> CondensedLog:
    """The end of LOG, as far as this run has written it; lines keep their numbers."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - TAIL_BYTES)
        file.seek(0)
        before = _line_breaks(file, start)
        data = file.read(TAIL_BYTES)
    begin = max((match.end() for match in HEADER.finditer(data)), default=0)
    growing = Growing(index, WHOLE_BYTES)
    growing.feed(data[begin:])
    state = growing.state(str(log))
    offset = before + data.count(b"\n", 0, begin)
    lines = tuple(LogLine(number=line.number + offset, text=line.text) for line in state.lines)
    return msgspec.structs.replace(state, lines=lines)


def _line_breaks(file: BinaryIO, end: int) -> int:
    """How many there are before the byte END, where FILE is left."""
    count = 0
    while left := end - file.tell():
        count += file.read(min(left, 1 << 20)).count(b"\n")
    return count


def _as_log(message: str) -> CondensedLog:
    lines = tuple(LogLine(number=number, text=line) for number, line in enumerate(message.splitlines(), 1))
    return CondensedLog(name="", lines=lines)


def _root(answer: Answer) -> Diagnosis | None:
    """The error that ANSWER names first."""
    return answer.diagnoses[0] if answer.diagnoses else None


def _lines(answer: Answer, message: str, logs: Path, found: Sequence[CondensedLog]) -> Iterator[str]:
    """What there is to say; FOUND is what was read of the LOGS."""
    root = _root(answer)
    evidence = answer.unknown.evidence if answer.unknown is not None else root.evidence if root is not None else ()
    for quote in evidence[:1]:
        # The line that says what failed stands last, below the frame that raised it.
        last = LogLine(number=quote.line, text=quote.text[-1] if quote.text else "")
        text = clean(read_line(last, 0, 0).text.strip()[:MAX_LINE])
        if text and text not in message:
            yield f"Likely cause: {_redacted(text)} ({quote.file}:{_number(quote, found)})"
    if root is not None:
        advice = "; or: ".join(fix.title for fix in root.fixes[:2])
        known = f"{' '.join(root.cause.split())}{advice and f' Fix: {advice}'}"
        yield f"Known problem: {_redacted(clean(known))} (rlcheck explain {root.id})"
    if found and evidence:
        yield f"All that the logs tell: rlcheck diagnose {shlex.quote(str(logs))}"


def _redacted(text: str) -> str:
    return redact_bytes(text.encode(), os.environ).decode()


def _number(quote: Quote, found: Sequence[CondensedLog]) -> int:
    """The number of QUOTE's last line; it has only that of the first, and may leave lines out in between."""
    lines = (line for log in found if log.name == quote.file for line in log.lines if line.number >= quote.line)
    return next((line.number for line in lines if line.text == quote.text[-1]), quote.line)
