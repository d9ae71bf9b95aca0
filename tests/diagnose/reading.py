"""Logs from text, for tests of the analysis alone."""

from __future__ import annotations

import re
from functools import cache

from rlcheck.diagnose.answer import diagnose
from rlcheck.diagnose.failures import failures
from rlcheck.diagnose.hits import hits
from rlcheck.diagnose.lines import read_line
from rlcheck.diagnose.model import Answer, CondensedLog, LogLine
from rlcheck.diagnose.ranking import rank
from rlcheck.diagnose.signatures import Index, Known, load
from rlcheck.playbook import Library, Relations, Signature

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


def small_index(**playbooks: str) -> Index:
    """An index of playbooks written as one line each: `literal`, then words such as wraps, after:*, warn, specific."""
    return Index(tuple(_known(name.replace("_", "-"), words) for name, words in playbooks.items()))


def _known(playbook_id: str, words: str) -> Known:
    literal, *rest = words.split("; ")
    told = dict(word.split(":", 1) for word in rest if ":" in word)
    signature = Signature(
        pattern=told.get("pattern", re.escape(literal)),
        literal=literal,
        status="warn" if "warn" in rest else "info" if "info" in rest else "fail",
        lines=int(told.get("lines", "1")),
        near=told.get("near", ""),
        unless=told.get("unless", ""),
        where=dict([told["where"].split(" ", 1)]) if "where" in told else {},
        specificity=3 if "specific" in rest else 2,
    )
    after = tuple(told["after"].split(",")) if "after" in told else ()
    return Known(playbook_id, (signature,), Relations(wraps="wraps" in rest, consequence_of=after))


def ranked(index: Index, *texts: str) -> tuple[list[str], Answer]:
    """The IDs found in these logs, echoes in brackets; titles are IDs, as no such playbook exists."""
    logs = [
        [read_line(line, number, at) for at, line in enumerate(log_of(text).lines)] for number, text in enumerate(texts)
    ]
    found = [failure for log in logs for failure in failures(log)]
    every = [hit for log in logs for hit in hits(log, index)]
    problems = rank(every, logs, found)
    answer = diagnose([log_of(text, f"{number}.log") for number, text in enumerate(texts)], index, LIBRARY)
    return [f"({one.best.id})" if one.echo else one.best.id for one in problems], answer
