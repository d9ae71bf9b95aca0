"""Why a run broke, read from the logs of its own processes: the likely root line, and the playbook that knows it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlcheck.playbook import Library, PlaybookError, Signature
from trainer.errors import RunFailure

CONTROLLER_LOG = "controller.log"
TAIL_BYTES = 1 << 20
MAX_LINE = 300
HEADER = re.compile(r"== \S+, process \d+, ")
"""The first line of each process in a log; an earlier run may have written above it."""
_RAISED = re.compile(r"(\w+\.)*[A-Z]\w*(Error|Exception|Failure|Interrupt)\b(:|$)")
_FATAL = re.compile(r"Fatal Python error|terminate called|Segmentation fault|CUDA error|out of memory|\bFATAL\b", re.I)
_CONSEQUENCES = re.compile(r"Connection (reset|closed|refused)|Broken pipe|EngineDeadError|EOFError|peer", re.I)
"""What a process says when another one has died."""


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
    words = str(error).strip().splitlines() or [""]
    line = f"{type(error).__name__}: {words[0]}"
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
        message: of the failure. The log that it names is read first; what it says already is not said again.
    """
    lines = list(_read(logs, since, message))
    known = next(((line, found) for line in lines if (found := _playbook(line.text))), None)
    root = known[0] if known else _root(lines)
    said: list[str] = []
    if root is not None and root.text not in message:
        said.append(f"Likely cause: {root.text} ({root.log}:{root.number})")
    if known is not None:
        said.append(f"Known problem: {known[1][1]}; more: rlcheck explain {known[1][0]}")
    return said


def _read(logs: Path, since: float, message: str) -> Iterator[Line]:
    """What the processes of this run have written, the log that MESSAGE names first; alone, if a signal killed it."""
    found = [log for log in sorted(logs.glob("*.log")) if log.stat().st_mtime >= since]
    named = [log for log in found if log.name in message]
    others = [] if "was killed by SIG" in message else [log for log in found if log not in named]
    for log in [*named, *others]:
        with log.open("rb") as file:
            data = file.read()
        before = data[:-TAIL_BYTES].count(b"\n")
        lines = list(enumerate(data[-TAIL_BYTES:].decode("utf-8", "replace").split("\n"), start=before + 1))
        begin = max((number for number, line in lines if HEADER.match(line)), default=0)
        yield from (Line(log, number, line.strip()[:MAX_LINE]) for number, line in lines if number > begin)


def _root(lines: list[Line]) -> Line | None:
    """The first exception or fatal word that is not the mere echo of another process's end."""
    told = [line for line in lines if _RAISED.match(line.text) or _FATAL.search(line.text)]
    return next((line for line in told if not _CONSEQUENCES.search(line.text)), told[0] if told else None)


def _playbook(text: str) -> tuple[str, str] | None:
    """ID and title of the playbook with a signature that is in TEXT."""
    return next(
        ((name, title) for signature, name, title in _signatures() if _matches(signature, text)),
        None,
    )


def _matches(signature: Signature, text: str) -> bool:
    return signature.literal in text and re.search(signature.pattern, text) is not None


_SIGNATURES: list[tuple[Signature, str, str]] = []


def _signatures() -> list[tuple[Signature, str, str]]:
    if not _SIGNATURES:
        library = Library()
        for name in library.ids():
            try:
                playbook = library.get(name)
            except PlaybookError:
                continue
            _SIGNATURES.extend((signature, playbook.id, playbook.title) for signature in playbook.signatures)
    return _SIGNATURES
