"""Prefixes that nobody lists: what a launcher or collector writes before each line, learnt from the log itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rlcheck.diagnose.failures import says_failure
from rlcheck.diagnose.lines import LEVEL, bare

_OF_A_TRACEBACK = re.compile(r'Traceback \(most recent call last\):|  File "[^"\n]{1,400}", line \d+')
_ENDS = re.compile(r"[|}\]>):\t-] ?")
_VARIES = re.compile(rf"\d+|\b(?:[A-Z][a-z]{{2}}(?= +\d)|{LEVEL}|std(?:out|err))\b")
"""What of a prefix is another in another line: numbers, names of months, levels and streams."""
_ONLY_WARNS = re.compile(r"WARN|DEBUG")
_HINT = re.compile("rror|xception|Interrupt|Killed|Aborted|Segmentation|[Ff]atal|FATAL|panic|xit|FAILED|not found")
_LONGEST, _MOST_LINES, _LAST_LINES, _SAMPLE = 160, 100, 2_000, 300
"""Of a prefix in characters; of lines that are looked at; of those at the end that may hold one; of those compared."""
_SHARE = 0.3
"""Of a log's lines at least so many begin with it: by the form of one line alone a message could be taken for one."""


def learnt(lines: Sequence[str]) -> re.Pattern[str] | None:
    """What stands before parts of tracebacks in LINES, and before failures where many other lines begin so, too."""
    found = dict.fromkeys(_before_tracebacks(lines))
    sample = [bare(line)[0] for line in lines[:: max(1, len(lines) // _SAMPLE)]]
    for prefix in dict.fromkeys(_before_failures(lines)):
        begins = re.compile(prefix)
        if sum(begins.match(text) is not None for text in sample) >= max(2, _SHARE * len(sample)):
            found[prefix] = None
    return re.compile("|".join(sorted(found, key=len, reverse=True))) if found else None


def _before_tracebacks(lines: Sequence[str]) -> Iterator[str]:
    parts = [line for line in lines if "Traceback (most recent" in line or '  File "' in line]
    for line in parts[-_MOST_LINES:]:
        if (part := _OF_A_TRACEBACK.search(line)) is not None:
            before, there, _ = bare(line)[0].partition(part[0])
            if there and before.strip() and len(before) <= _LONGEST:
                yield _as_pattern(before)


def _before_failures(lines: Sequence[str]) -> Iterator[str]:
    """What may be a prefix: behind it a failure stands."""
    for line in [line for line in lines[-_LAST_LINES:] if _HINT.search(line)][-_MOST_LINES:]:
        text, _ = bare(line)
        if says_failure(text):
            continue
        for end in _ENDS.finditer(text[:_LONGEST]):
            before, rest = text[: end.end()], text[end.end() :]
            if says_failure(rest) and not _ONLY_WARNS.search(before):
                yield _as_pattern(before)


def _as_pattern(prefix: str) -> str:
    pieces: list[str] = []
    end = 0
    for match in _VARIES.finditer(prefix):
        kind = r"\d+" if match[0].isdigit() else r"[A-Za-z]+"
        pieces += [re.escape(prefix[end : match.start()]), kind]
        end = match.end()
    return "".join(pieces) + re.escape(prefix[end:])
