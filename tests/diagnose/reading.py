"""Logs from text, for tests of the analysis alone."""

from __future__ import annotations

from functools import cache

from rlcheck.diagnose.answer import diagnose
from rlcheck.diagnose.model import Answer, CondensedLog, LogLine
from rlcheck.diagnose.signatures import Index, load
from rlcheck.playbook import Library

LIBRARY = Library()


@cache
def index() -> Index:
    return load()


def log_of(text: str, name: str = "run.log") -> CondensedLog:
    lines = tuple(LogLine(number=number, text=line) for number, line in enumerate(text.split("\n"), 1))
    return CondensedLog(name=name, lines=lines, total_lines=len(lines), total_bytes=len(text))


def diagnosed(*texts: str) -> Answer:
    logs = [log_of(text, f"rank-{number}.log") for number, text in enumerate(texts)]
    return diagnose(logs, index(), LIBRARY)
