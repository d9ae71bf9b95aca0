"""The traceback of a failure: exception type, message and frames, whatever launchers put before the lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from rlcheck.diagnose.failures import Failure
from rlcheck.diagnose.lines import Message
from rlcheck.facts.base import Struct

_FRAME = re.compile(r'[\s|]{0,60}File "([^"\n]{1,400})", line (\d{1,7})(?:, in ([^\n]{1,200}))?')
_RAISED = re.compile(r"[\s|+]{0,60}(?:\w+\.)*(\w+)(?:\((\w+)\))?(?:: (.*))?$", re.S)
_STARTS = ("Traceback (most recent call last)", "During handling of the above", "The above exception was the direct")
_MARKS = re.compile(r"[\s|~^]*")
_ADDED = re.compile(
    r"\. Did you (?:mean: |forget to import )'[^'\n]{1,80}'\?$| \(parameter=\w+(?:, value=[^\n]{0,400})?\)$"
)
"""What Python itself puts behind a message, and vLLM's exceptions."""
_MOST_LINES = 400
_MOST_OF_MESSAGE = 30
_FAR = 12
"""Lines without a frame after which those above belong to something else."""


class Frame(Struct, frozen=True):
    """A frame as the log shows it; `source` is the line of code that is quoted below it, "" without one."""

    file: str
    line: int
    function: str
    source: str
    message: Message


class Trace(Struct, frozen=True):
    """An exception: its `type` without its module, the lines of its message, its frames from the outermost on."""

    type: str
    text: tuple[str, ...]
    frames: tuple[Frame, ...]


def trace_of(failure: Failure, log: Sequence[Message]) -> Trace | None:
    """The traceback that ends in FAILURE; None where the log holds none."""
    trace = exception_of(failure, log) if failure.frame is not None else None
    return trace if trace is not None and trace.frames else None


def exception_of(failure: Failure, log: Sequence[Message]) -> Trace | None:
    """The exception that FAILURE names, without frames where its traceback is not in the log; None if it names none."""
    raised = _RAISED.match(failure.message.text)
    if raised is None:
        return None
    frames = _frames(failure, log) if failure.frame is not None else ()
    text = (_ADDED.sub("", raised[3]), *_more(failure, log)) if raised[3] is not None else ()
    kind = raised[2] or raised[1]
    if kind.endswith("KeyError") and text:
        text = (_unquoted(text[0]), *text[1:])
    return Trace(type=kind, text=text, frames=frames)


def _unquoted(text: str) -> str:
    """The message of a KeyError, which Python prints as a literal."""
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, str) else text


def _writer(message: Message) -> tuple[str, str, str]:
    return message.rank, message.node, message.pid


def _frames(failure: Failure, log: Sequence[Message]) -> tuple[Frame, ...]:
    last = failure.frame
    assert last is not None
    frames: list[Frame] = []
    below, far = "", 0
    for message in reversed(log[max(0, last.at - _MOST_LINES) : failure.message.at]):
        if message is not last and _writer(message) != _writer(last) and message.at < last.at:
            continue
        found = _FRAME.match(message.text)
        if found is not None:
            function, line = (found[3] or "").strip(), int(found[2])
            frames.append(Frame(file=found[1], line=line, function=function, source=below, message=message))
            below, far = "", 0
        elif any(start in message.text for start in _STARTS) or far > _FAR:
            break
        else:
            plain = message.text.strip(" |\t")
            below = plain if _MARKS.sub("", plain, count=1) else below
            far += 1
    return tuple(reversed(frames))


def _more(failure: Failure, log: Sequence[Message]) -> tuple[str, ...]:
    """The lines after the first one of a message, and maybe some that are no longer of it."""
    at = failure.message.at
    lines: list[str] = []
    for message in log[at + 1 : at + 1 + _MOST_OF_MESSAGE]:
        if any(start in message.text for start in _STARTS) or _FRAME.match(message.text):
            break
        if _writer(message) == _writer(failure.message):
            lines.append(message.text)
    return tuple(lines)
