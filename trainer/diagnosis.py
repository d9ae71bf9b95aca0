"""Why a run broke, read from the logs of its own processes: the likely root line, and the playbook that knows it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlcheck.playbook import Library, Playbook, PlaybookError
from trainer.errors import RunFailure, kind_and_line

CONTROLLER_LOG = "controller.log"
TAIL_BYTES = 1 << 20
MAX_LINE = 300
HEADER = re.compile(r"== \S+, process \d+, ")
"""The first line of each process in a log; an earlier run may have written above it."""
_RAISED = re.compile(r"(\w+\.)*[A-Z]\w*(Error|Exception|Failure|Interrupt)\b(:|$)")
_FATAL = re.compile(r"Fatal Python error|terminate called|Segmentation fault|CUDA error|out of memory|\bFATAL\b", re.I)
_CONSEQUENCES = re.compile(r"Connection (reset|closed|refused)|Broken pipe|EngineDeadError|EOFError|peer", re.I)
"""What a process says when another one has died."""
_REMARKS = re.compile(r"Warning|WARNING|deprecated|\bINFO\b")
"""Lines of libraries that run all the same: no cause of an end, whatever playbook knows them."""
_COMPLAINTS = re.compile(r"\bWARN\b|error|fail|kill", re.I)


@dataclass(frozen=True)
class Line:
    """One line of a log."""

    log: Path
    number: int
    text: str


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


def diagnose(logs: Path, since: float, message: str) -> list[str]:
    """Lines that name the likely cause, as far as it can be read.

    Args:
        logs: directory of the logs of the run's processes.
        since: when the run began (Unix time); logs that are older say nothing.
        message: of the failure. The log that it names is read first; where it names none, it says itself what broke.
            What it says already is not said again.
    """
    lines = list(_read(logs, since, message))
    errors = [line for line in lines if _is_error(line)]
    root = next((line for line in errors if not _CONSEQUENCES.search(line.text)), errors[0] if errors else None)
    named = _playbook(message)
    # An exception is a better witness than what was printed before it.
    complaints = [line for line in lines if _COMPLAINTS.search(line.text) and not _REMARKS.search(line.text)]
    for line in [] if named else [*errors, *complaints]:
        named = _playbook(line.text)
        if named is not None:
            root = line
            break
    said: list[str] = []
    if root is not None and root.text not in message:
        said.append(f"Likely cause: {root.text} ({root.log}:{root.number})")
    if named is not None:
        cause, fix = " ".join(named.cause.split()), named.fixes[0].title
        said.append(f"Known problem: {cause} Mend: {fix} (rlcheck explain {named.id})")
    return said


def _read(logs: Path, since: float, message: str) -> Iterator[Line]:
    """What the processes of this run have written, the log that MESSAGE names first; alone, if a signal killed it."""
    found = [log for log in sorted(logs.glob("*.log")) if log.stat().st_mtime >= since]
    named = [log for log in found if log.name in message]
    if not named:
        return
    others = [] if "was killed by SIG" in message else [log for log in found if log not in named]
    for log in [*named, *others]:
        with log.open("rb") as file:
            data = file.read()
        before = data[:-TAIL_BYTES].count(b"\n")
        lines = list(enumerate(data[-TAIL_BYTES:].decode("utf-8", "replace").split("\n"), start=before + 1))
        begin = max((number for number, line in lines if HEADER.match(line)), default=0)
        yield from (Line(log, number, line.strip()[:MAX_LINE]) for number, line in lines if number > begin)


def _is_error(line: Line) -> bool:
    return _RAISED.match(line.text) is not None or _FATAL.search(line.text) is not None


def _playbook(text: str) -> Playbook | None:
    """The playbook with a signature that is in TEXT."""
    return next((playbook for playbook in _playbooks() if _knows(playbook, text)), None)


def _knows(playbook: Playbook, text: str) -> bool:
    return any(known.literal in text and re.search(known.pattern, text) for known in playbook.signatures)


@cache
def _playbooks() -> list[Playbook]:
    """Those that can be recognised in a log."""
    library, found = Library(), list[Playbook]()
    for name in library.ids():
        with suppress(PlaybookError):  # a damaged one must not hide why the run broke
            found.append(library.get(name))
    return [playbook for playbook in found if playbook.signatures]
