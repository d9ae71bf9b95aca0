"""Lines that say by their form alone that something failed: exceptions, panics, signals, errors of a logger.

They tell a healthy log from one whose failure no playbook knows, and where that failure shows first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rlcheck.diagnose.lines import Message
from rlcheck.facts.base import Struct

_RAISED = re.compile(
    r"(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure|Fault|Timeout|Expired|Died|Group)"
    r"(?:\([\w.]+\))?(?:: |:?$)|(?:[a-z_]\w*\.)+[A-Z]\w+(?<!Warning): "
    r"|(?:re|zlib|struct|socket|select|curses)\.(?:error|gaierror|herror|timeout)(?:: |$)"
)
_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: |:?$)")
_FRAME = re.compile(r'\s*File "[^"\n]{1,400}", line \d+|\s+\^+|\s+~*\^+~*')
_STARTS = "Traceback (most recent call last)"
_CHAINS = ("The above exception was the direct cause", "During handling of the above exception")
# The frames of one of several exceptions that failed together are behind a bar.
_GROUP = re.compile(r"\s{1,40}\| ?(?=\S)")
_IGNORED = "Exception ignored in"
_MARKERS = re.compile(
    r"panicked at|^panic: |^FATAL\b|\bFATAL\b[ :]|^fatal( error)?: (?!not a git)|\bSegmentation fault|\bAborted\b"
    r"|core dumped|terminate called|Fatal Python error|^Killed\b|Exception in thread|\bBus error\b|^Error: "
    r"|command not found$|^\S{0,200}: line \d+: .{0,200}(?:Killed|Terminated|Aborted|No such file)|^make: \*\*\*"
    r"|level=(?:error|fatal)\b"
    r"|\"level\": ?\"(?:error|fatal)\"|[Ee]xit(?:ed)?(?: with)?(?: exit)?[ _]?(?:code|status)[:=]? ?(?!0\b)-?\d+"
    r"|Unhandled exception|^(?:[\w./-]+: )?(?:error|ERROR): |^ERROR |(?<![\w/])FAILED\b(?!\W{0,3}0\b)|^\{\"error\": "
    r"|^stack backtrace:|(?:^|^\+ |: )exit [1-9]\d{0,2}$|PHP Fatal error:|^\S{1,200}\.rb:\d+:in .{1,200} \(\w+Error\)$"
    r"|(?:: line \d+:\s{1,4}\d+|^\[\d+\][+-]?(?:\s{1,4}\d+)?)\s{1,4}(?:Exit [1-9]|Done\([1-9])"
    r"|\bexited with -?[1-9]\d{0,2}$"
    r"|^lua\w*: \S{1,200}:\d+: |^\S{0,200}: line \d+: syntax error|^\S{0,80}python[\d.]*: can't open file"
)
_HINTS = (
    *("panic", "FATAL", "atal error:", "fatal: ", "Fatal Python", "Segmentation", "Aborted", "core dumped", "Killed"),
    *("terminate called", "Exception in thread", "Bus error", "rror: ", "ERROR", 'rror": ', "command not found"),
    *(
        "xit ",
        ": line ",
        "make: ***",
        "level=",
        '"level"',
        "xit_",
        "xitcode",
        "xitstatus",
        "xited",
        "Unhandled",
        "FAILED",
    ),
    *("stack backtrace", ".rb:", "can't open", "Done("),
)
"""One of these is in whatever `_MARKERS` finds, or it begins with "lua"; to look for them is fifty times quicker."""
_LOGGED = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|^\[?[EF]\d{3,4} \d\d:")
_QUOTES_ERRORS = re.compile(
    r"\b(?:ERROR|CRITICAL)\b[^:]{0,40}=|=\s*['\"]?(?:ERROR|CRITICAL)\b"
    r"|(?i:level)\W{0,3}(?:set |is )?(?:to )?\W{0,2}(?:ERROR|CRITICAL)\b"
)


class Failure(Struct, frozen=True):
    """One failure as the log shows it: the line that names it, and the frame above it, if it was raised.

    `raised` failures are exceptions; `root` is False for one that was raised while another was handled.
    """

    message: Message
    frame: Message | None = None
    raised: bool = False
    root: bool = True


def failures(messages: Sequence[Message]) -> Iterator[Failure]:
    """The failures of one log in the order in which they are there."""
    frame: Message | None = None
    chained = ignored = False
    for message in messages:
        bar = _GROUP.match(message.text)
        text = message.text[bar.end() :] if bar else message.text
        if text.startswith(_CHAINS):
            chained, frame = True, None
        elif text.startswith(_IGNORED):
            ignored = True
        elif _STARTS in text:
            frame = None
        elif _FRAME.match(text):
            frame = message
        elif text[:1].isspace() or not text:
            continue
        elif _RAISED.match(text) or (frame is not None and message.at - frame.at <= 3 and _NAMED.match(text)):
            if "Warning" not in text.split(":", 1)[0] and not ignored:
                yield Failure(message=message, frame=frame, raised=True, root=not chained)
            frame, chained, ignored = None, False, False
        elif _is_marked(message):
            yield Failure(message=message)


def says_failure(text: str) -> bool:
    """Whether a message of this form names a failure by itself."""
    return bool(_RAISED.match(text)) or _has_marker(text)


def _has_marker(text: str) -> bool:
    return (text.startswith("lua") or any(hint in text for hint in _HINTS)) and _MARKERS.search(text) is not None


def _is_marked(message: Message) -> bool:
    text = message.text
    if _has_marker(text):
        return True
    head = message.whole[: 60 + len(message.whole) - len(text)]
    return bool(_LOGGED.search(head)) and not _QUOTES_ERRORS.search(head)
