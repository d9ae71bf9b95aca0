"""The text of log lines without what is only for terminals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rlcheck.diagnose.blocks import OVERLAP
from rlcheck.diagnose.model import MAX_LINE, LogLine

# In bounded pieces: a broken sequence must not swallow the rest of a line.
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,1024}(?:\x07|\x1b\\)|[PX^_][^\x1b\n]{0,1024}\x1b\\"
    rb"|[ -/]{0,8}[0-~])"
)
# Control characters but tab, line feed and carriage return; in UTF-8 these bytes are never part of another character.
_CONTROL = bytes({*range(32), 127} - {9, 10, 13})
# What is left of a colour when something on the way has taken off, or spelled out, its escape character.
# Under which names loggers and container runtimes that write JSON keep what was said, in the order in which it was.
_SAID = ("log", "message", "msg", "event", "text", "exc_info", "exception", "stack_trace", "traceback")
_SPELLED = re.compile(rb"(?:\\x1[bB]|\\u001[bB]|\\033|\\e|\^\[)?\[[\d;]{1,12}m")


def strip_escapes(data: bytes) -> bytes:
    """`data` without terminal escapes (colours, cursor movements, titles); line breaks stay."""
    return _ESCAPES.sub(b"", data) if b"\x1b" in data else data


def log_lines(numbers: Sequence[int], data: bytes) -> Iterator[LogLine]:
    """The lines of `data` as a reader sees them: no colours, no control characters, a redrawn bar as several lines."""
    data = strip_escapes(data)
    if _SPELLED.search(data):
        data = _SPELLED.sub(b"", data)
    text = data.translate(None, _CONTROL).decode("utf-8", "replace")
    for number, line in _unpacked(zip(numbers, text.split("\n"), strict=False)):
        if len(line) <= MAX_LINE and "\r" not in line:
            yield LogLine(number=number, text=line)
            continue
        pieces = [piece for part in line.split("\r") if part for piece in _pieces(part)]
        for piece in pieces or [""]:
            yield LogLine(number=number, text=piece)


def _unpacked(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the LINES; of one that is a JSON object with words of a program, these words, line by line."""
    for number, line in lines:
        said = _said(line) if line.startswith("{") and line.rstrip().endswith("}") else []
        for text in said or [line]:
            yield number, text


def _said(line: str) -> list[str]:
    try:
        held: Any = json.loads(line)
    except (ValueError, RecursionError):
        return []
    texts = [held[name] for name in _SAID if isinstance(held.get(name), str)]
    return [part for text in texts for part in text.rstrip("\n").split("\n")]


def _pieces(text: str) -> Iterator[str]:
    """`text` in pieces of at most `MAX_LINE` that overlap, so that what a cut goes through is whole in one of them."""
    yield text[:MAX_LINE]
    for start in range(MAX_LINE - OVERLAP, len(text) - OVERLAP, MAX_LINE - OVERLAP):
        yield text[start : start + MAX_LINE]
