"""Reads what NCCL's RAS service said of a job (`ncclras -v >> FILE`): which process is behind in which collective.

Counts of launched operations differ in a healthy job, too: only what two reports say alike is a job that stands still.
The words are those of NVIDIA/nccl: src/ras/client_support.cc@12df1a1, and of 2.24, which has one count for all kinds.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from rlcheck.diagnose.hang.graph import ranks_words
from rlcheck.facts.hang import Culprit, Hang

MOST_BYTES = 64 << 20
_MOST_REPORTS = 200
_BEGINS = re.compile(rb"NCCL version \S{1,40} compiled with CUDA")
_REPORT = re.compile(r"^NCCL version \S{1,40} compiled with CUDA", re.M)
_COMM = re.compile(r"#(\d{1,6})-\d{1,6} \((\w{1,32})\) (\w{1,16})$")
_KIND = re.compile(r"  Communicator ranks have different (\w{1,40})(?: operation)? ")
_MANY = re.compile(r"  (\d{1,7}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)$")
_RANK = re.compile(
    r"  Rank (\d{1,7})(?: has (?:launched up to operation (\d{1,18})|(not) launched any operations))? -- "
    r"(?:GPU .{1,80} managed by process (\d{1,10}) on node (\S{1,255})|\[)"
)
_PROCESS = re.compile(r"  Process (\d{1,10}) on node (\S{1,255}) managing GPU")
_GROUP = re.compile(r" *(\d{1,6}) +\d+ +\d+ +\S{1,20} +(\d{1,7}) +\d+ +[A-Z]+ +\S+$")
_NUMBERS = re.compile(r" *\d{1,9}(?: +\d{1,9}){2,5}$")


@dataclass(frozen=True)
class Member:
    """A rank of a communicator, and its process; 0 and "" where RAS does not know it."""

    rank: int
    pid: int
    node: str


@dataclass
class Level:
    """The ranks of a communicator that have launched up to operation COUNT. RAS names not all of `num` ranks."""

    count: int
    num: int
    named: list[Member] = field(default_factory=list[Member])


@dataclass
class Report:
    """One answer of the service. `levels`: by communicator and kind of collective; `sizes`: of communicators."""

    gpus: int = 0
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    levels: dict[tuple[str, str], list[Level]] = field(default_factory=dict[tuple[str, str], list[Level]])
    dead: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Lag:
    """MEMBER has launched COUNT operations of KIND in a communicator of SIZE ranks, others TOP. `rank`: of the job."""

    member: Member
    size: int
    kind: str
    count: int
    top: int
    odd: bool
    """It is ahead in another kind: it has called something else."""
    rank: int | None

    @property
    def words(self) -> str:
        """`rank 2 (process 4711 on node 10.0.0.3) has launched AllReduce up to 4, others up to 5`."""
        who = f"rank {self.rank}" if self.rank is not None else f"rank {self.member.rank} of a group of {self.size}"
        place = f" (process {self.member.pid} on node {self.member.node})" if self.member.pid else ""
        return f"{who}{place} has launched {self.kind} up to {self.count}, others up to {self.top}"


def looks_like_ras(start: bytes) -> bool:
    """Whether a file that begins like this is RAS's status."""
    return _BEGINS.search(start[:400]) is not None and b"Job summary" in start


def read(path: str) -> list[Report]:
    """The reports in PATH, the last ones, in their order."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - MOST_BYTES))
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    places = [found.start() for found in _REPORT.finditer(text)][-_MOST_REPORTS:]
    return [_report(text[begin:end]) for begin, end in zip(places, [*places[1:], len(text)], strict=True)]


def _report(text: str) -> Report:
    found, groups = Report(), dict[str, int]()
    section, comm, kind = "", "", ""
    levels: list[Level] = []
    for line in text.splitlines():
        if match := _COMM.match(line):
            section, comm, kind, levels = match[3], match[2], "", []
            found.sizes[comm] = groups.get(match[1], 0)
        elif line and not line.startswith(" ") and not line.startswith("#"):
            section, kind = line.strip(), ""
        elif (match := _GROUP.match(line)) and not kind:
            groups[match[1]] = int(match[2])
        elif _NUMBERS.match(line) and not groups:
            found.gpus = int(line.split()[-1])
        elif section == "DEAD" and (match := _PROCESS.match(line)):
            found.dead.append(f"process {match[1]} on node {match[2]}")
        elif section == "MISMATCH":
            if match := _KIND.match(line):
                kind = "" if match[1] == "status" else match[1]
                levels = found.levels.setdefault((comm, kind), []) if kind else []
            elif kind:
                _count(line, levels)
    return found


def _count(line: str, levels: list[Level]) -> None:
    if match := _MANY.match(line):
        levels.append(Level(int(match[2] or 0), int(match[1])))
    elif match := _RANK.match(line):
        if match[2] or match[3]:
            levels.append(Level(int(match[2] or 0), 1))
        if levels:
            levels[-1].named.append(Member(int(match[1]), int(match[4] or 0), match[5] or ""))


def lags(report: Report) -> list[Lag]:
    """Who is behind and waits for no one that is: the ends of the chain, or who has called something else."""
    whole: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for (comm, _), levels in report.levels.items():
        if report.sizes.get(comm) == report.gpus > 0:
            for one in (one for level in levels for one in level.named if one.pid):
                whole[one.node, one.pid].add(one.rank)
    behind: list[tuple[Lag, bool]] = []
    ahead: set[Member] = set()
    for (comm, kind), levels in report.levels.items():
        top = max((level.count for level in levels), default=0)
        first = [level for level in levels if level.count == top]
        rest = [level for level in levels if level.count < top]
        few = sum(level.num for level in rest) <= sum(level.num for level in first)
        ahead.update(one for level in first for one in level.named)
        for level in rest:
            for one in level.named:
                # A process with several GPUs is several ranks.
                size, ranks = report.sizes.get(comm, 0), whole.get((one.node, one.pid), set[int]())
                rank = one.rank if size == report.gpus > 0 else min(ranks) if len(ranks) == 1 else None
                behind.append((Lag(one, size, kind, level.count, top, False, rank), few))
    ends = [lag for lag, _ in behind if not _waits(lag.member, ahead)]
    return ends or [_odd(lag) for lag, few in behind if few]


def _waits(one: Member, ahead: Iterable[Member]) -> bool:
    return any(one == other or (one.pid and (one.node, one.pid) == (other.node, other.pid)) for other in ahead)


def _odd(lag: Lag) -> Lag:
    return Lag(lag.member, lag.size, lag.kind, lag.count, lag.top, True, lag.rank)


def judge(reports: Mapping[str, Sequence[Report]]) -> tuple[Hang | None, list[str]]:
    """What REPORTS, by file, say of a job that stands still, and what else is to be said of them."""
    hang: Hang | None = None
    notes: list[str] = []
    for path, some in reports.items():
        if not some:
            notes.append(f"{path}: no report of NCCL's RAS in it is whole")
            continue
        last, before = lags(some[-1]), lags(some[-2]) if len(some) > 1 else []
        stands = [lag for lag in last if lag in before]
        for one in last[:8]:
            once = "" if one in stands else f"; it hangs if ncclras -v >> {path} says so again a minute later"
            notes.append(f"{path}: NCCL's RAS: {one.words}{once}")
        known = [lag for lag in stands if lag.rank is not None]
        if hang is None and (some[-1].dead or known):
            hang = _hang(some[-1], known)
    return hang, notes


def _hang(report: Report, stands: Sequence[Lag]) -> Hang:
    by_rank = {lag.rank: lag for lag in stands}
    culprits = tuple(
        Culprit(
            rank, "mismatch" if lag.odd else "behind", f"{lag.kind} {lag.count}", f"{lag.kind} {lag.count + 1}",
            node=lag.member.node, pid=lag.member.pid,
        )
        for rank, lag in sorted(by_rank.items(), key=lambda one: one[1].member.rank)
    )  # fmt: skip
    said = [f"NCCL's RAS holds {', '.join(report.dead[:4])} for dead"] if report.dead else []
    if culprits:
        what = (
            "launched other collectives than the rest" if stands[0].odd else "launched fewer collectives than the rest"
        )
        said.append(f"{ranks_words([one.rank for one in culprits])} {what}, in two reports of NCCL's RAS alike")
    steps = [f"look what ended {one}: its log, and its node's kernel log" for one in report.dead[:4]]
    steps += [
        f"rank {one.rank}: py-spy dump --pid {one.pid} on node {one.node}: it waits, loops or is stopped"
        for one in culprits
        if one.pid
    ]
    return Hang(said="; ".join(said), culprits=culprits, steps=tuple(steps))


def with_places(hang: Hang, reports: Mapping[str, Sequence[Report]]) -> Hang:
    """HANG, with the nodes and processes of its culprits, as far as RAS names them."""
    known = {
        lag.rank: lag.member for some in reports.values() for one in some[-1:] for lag in lags(one) if lag.member.pid
    }
    culprits = tuple(
        replace(one, node=one.node or known[one.rank].node, pid=one.pid or known[one.rank].pid)
        if one.rank is not None and one.rank in known
        else one
        for one in hang.culprits
    )
    return replace(hang, culprits=culprits)
