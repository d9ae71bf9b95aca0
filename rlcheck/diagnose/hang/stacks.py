"""Reads stacks of ranks, as faulthandler and py-spy print them: is a rank in a collective, or in work of its own?"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise

from rlcheck.diagnose.hang.graph import Frame, Stack, in_collective

MOST_BYTES = 4 << 20
_MOST_FRAMES = 60
_FAULT_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+", re.M)
_FAULT_FRAME = re.compile(r'^\s*File "([^"\n]{1,400})", line (\d{1,9}) in (\S{1,200})', re.M)
_SPY_THREAD = re.compile(r"^Thread (?:0x)?[0-9A-Fa-f]+ ?\((?:active|idle)[^)\n]*\)", re.M)
_SPY_FRAME = re.compile(r"^ {4}(\S[^\n(]{0,200}) \(([^:)\n]{1,400}):(\d{1,9})\)", re.M)
_BEGINS = re.compile(
    rb"\s*(?:Timeout \([^)\n]*\)!\s+)?(?:(?:Current thread|Thread) 0x[0-9a-f]+.*most recent|Process \d+: )"
)
_RANK = re.compile(r"rank[-_. =]{0,2}(\d{1,7})(?!\d)", re.I)
_NUMBER = re.compile(r"\d{1,7}")


def looks_like_stacks(start: bytes) -> bool:
    """Whether a file that begins like this holds stacks and nothing else: a log of a crash may hold some, too."""
    return _BEGINS.match(start) is not None


def read(path: str) -> Stack | None:
    """The last stacks in PATH, where they are of a rank that its name or its text gives."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - MOST_BYTES))
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    name = os.path.basename(path)
    numbers = _RANK.findall(name) or _RANK.findall(text[:2000]) or _NUMBER.findall(name)
    thread = _main_thread(text)
    if not numbers or not thread:
        return None
    role = re.sub(r"[-_.]*\d.*", "", name)
    frames = tuple(f"{os.path.basename(file)}:{line} in {function}"[:160] for file, line, function in thread)
    return Stack(path, int(numbers[-1]), frames, in_collective(thread), "" if role in ("stack", "rank") else role)


def threads(text: str) -> list[list[Frame]]:
    """All threads of one dump by faulthandler, the main one first: it is written last."""
    return [thread for part in reversed(_parts(_FAULT_THREAD, text)) if (thread := _fault(part))]


def _main_thread(text: str) -> Sequence[Frame]:
    """Of the last dump in TEXT, the thread that begins in a module; else the one with the most frames."""
    threads = [_fault(part) for part in _parts(_FAULT_THREAD, text)] or [
        _spy(part) for part in _parts(_SPY_THREAD, text)
    ]
    threads = [thread for thread in threads if thread]
    mains = [thread for thread in threads if thread[-1][2] == "<module>"]
    return mains[-1] if mains else max(threads, key=len, default=())


def _parts(head: re.Pattern[str], text: str) -> list[str]:
    places = [*(found.start() for found in head.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def _fault(part: str) -> list[Frame]:
    return [(file, line, function) for file, line, function in _FAULT_FRAME.findall(part)][:_MOST_FRAMES]


def _spy(part: str) -> list[Frame]:
    return [(file, line, function.strip()) for function, file, line in _SPY_FRAME.findall(part)][:_MOST_FRAMES]
