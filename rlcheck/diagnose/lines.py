"""One log line: what its writer said, and who and when that was. Launchers and loggers put these before the message."""

from __future__ import annotations

import re

from rlcheck.diagnose.model import LogLine
from rlcheck.facts.base import Struct

_DAY = r"\d{4}[-/]\d\d[-/]\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_PLACE = r"[\w./<>-]{1,80}\.(?:py|cc|cpp|h|cu|go|rs):\d+"
LEVEL = r"(?:DEBUG|INFO|SUCC|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # Ray: (TaskRunner pid=1, ip=10.0.0.1), (raylet), (gcs_server); vLLM: (VllmWorker rank=0 pid=7)
        r"\((?P<role>[A-Za-z_][\w.:<>+-]{0,80})(?: rank=(?P<rank>\d+))?,?(?: \w+=\w+,?){0,4} ?pid=(?P<pid>\d+)"
        r"(?:, ip=(?P<node>[\w.:-]+))?[^)\n]{0,60}\) ?",
        r"\((?P<role>raylet|gcs_server|autoscaler|dashboard|head)(?:, ip=(?P<node>[\w.:-]+))?[^)\n]{0,40}\) ?",
        # torchrun: [rank0]: and [default0]:
        r"\[(?:rank|default)(?P<rank>\d+)\]:? ?",
        # Ray's C++ logger: [2026-01-02 03:04:05,678 E 12 12] and SGLang: [2026-01-02 03:04:05 TP14]
        rf"\[(?P<time>{_DAY}[ T]{_CLOCK})(?:[ ,]+(?:[A-Z] (?P<pid>\d+)(?: \d+)?|(?:[DEPT]P\d+ ?)+))?[^\]\n]{{0,20}}\]"
        r" ?",
        # glog: E0102 03:04:05.678901 12 file.cc:3] and torch: [rank0]:[E102 03:04:05.678901 ProcessGroupNCCL.cpp:6]
        rf"\[?[DIWEF](?P<time>\d{{3,4}} {_CLOCK})(?: +(?P<pid>\d+))?(?: \d+)? {_PLACE}\] ?",
        # vLLM: ERROR 01-02 03:04:05 [core.py:3] and, older, ERROR 01-02 03:04:05 core.py:3]
        rf"{LEVEL} (?P<time>\d\d-\d\d {_CLOCK}) \[?{_PLACE}\] ?",
        # Python's logging and everybody else who begins with a date
        rf"(?P<time>{_DAY}[ T]{_CLOCK})(?:Z|[+-]\d\d:?\d\d)?(?:[\s|,:-]+{LEVEL}\b)?[\s|,:-]*"
        rf"(?:{_PLACE}(?: --|\]|:)?[ \t]?)?",
        # srun --label
        r" {0,3}(?P<rank>\d{1,4}): (?=\S| {2,}\S)",
        # containerd's log files, after their time; kubectl logs --prefix
        r"std(?:out|err) [FP] ",
        r"\[pod/[\w./-]{1,200}\] ",
        # mpirun --tag-output; syslog and journalctl; a clock alone; seconds since the start
        r"\[\d+,(?P<rank>\d+)\]<std(?:out|err|diag)>: ?",
        rf"[A-Z][a-z][a-z] [ \d]\d {_CLOCK}(?: (?P<node>[\w.-]{{1,80}}) [\w./@-]{{1,80}}(?:\[(?P<pid>\d+)\])?:)? ",
        rf"{_CLOCK}[ \t]",
        r"\[? {0,8}\d{1,7}\.\d{1,9} ?s?\]?:? (?=\S| {2,}\S)",
    )
)
_NCCL = re.compile(r"(?P<node>[\w.-]{1,80}):(?P<pid>\d+):\d+ \[\d+\] ")
_MOST_PREFIXES = 6


class Message(Struct, frozen=True):
    """A line and what its prefixes tell. `text` is the message, its indentation kept; `whole` the line as it stands."""

    log: int
    at: int
    number: int
    text: str
    whole: str
    rank: str = ""
    node: str = ""
    pid: str = ""
    time: str = ""


def bare(text: str, learnt: re.Pattern[str] | None = None) -> tuple[str, dict[str, str]]:
    """TEXT without its prefixes, and what these tell."""
    told: dict[str, str] = {}
    for _ in range(_MOST_PREFIXES):
        match = _prefix(text)
        if match is None and learnt is not None:
            match, learnt = learnt.match(text), None
        if match is None:
            break
        for name, value in match.groupdict().items():
            if value and name != "role":
                told.setdefault(name, value)
        text = text[match.end() :]
    return text, told


def read_line(line: LogLine, log: int, at: int, learnt: re.Pattern[str] | None = None) -> Message:
    """Take the prefixes off: those that are known, and one of LEARNT.

    `log` and `at` are the positions of the log and of the line in it.
    """
    text, told = bare(line.text, learnt)
    nccl = _NCCL.match(text)
    if nccl is not None:
        told = {"node": nccl["node"], "pid": nccl["pid"], **told}
    return Message(
        log=log,
        at=at,
        number=line.number,
        text=text,
        whole=line.text,
        rank=told.get("rank", ""),
        node=told.get("node", ""),
        pid=told.get("pid", ""),
        time=told.get("time", "").replace("T", " ").replace("/", "-").replace(",", "."),
    )


def _prefix(text: str) -> re.Match[str] | None:
    for pattern in _PREFIXES:
        match = pattern.match(text)
        if match is not None and match.end():
            return match
    return None
