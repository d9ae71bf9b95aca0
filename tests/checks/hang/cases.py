"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from __future__ import annotations

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.hang import HangFacts, Peer, Process, Thread

WITHIN = (
    "torch/distributed/distributed_c10d.py:3252 in all_reduce",
    "job/train.py:88 in step",
    "job/train.py:120 in main",
)
BARRIER = (
    "torch/distributed/distributed_c10d.py:5010 in barrier",
    "job/train.py:99 in save",
    "job/train.py:120 in main",
)
ASLEEP = ("job/parse.py:14 in parse", "job/train.py:80 in step")
READS = ("python3.11/socket.py:706 in readinto", "job/reward.py:9 in score")


def rank(number: int, frames: tuple[str, ...] = WITHIN, **more: object) -> Process:
    """Rank NUMBER of four, seen in FRAMES at each look."""
    look = (Thread(tid=100 + number, frames=frames, gil=bool(more.pop("gil", False))),)
    values = {"looks": (look, look, look), **more}
    return Process(pid=100 + number, role="", rank=number, world=4, job="127.0.0.1:29500/4", **values)  # pyright: ignore


def job(*processes: Process, **more: object) -> Facts:
    """A job that was looked at for six seconds."""
    return Facts(hang=known(HangFacts(processes=processes, watched_s=6.0, **more)))  # pyright: ignore


def with_odd(odd: Process, *others: Process) -> Facts:
    """Four ranks of which ODD is as given, the others in one all_reduce, and OTHERS."""
    return job(*(odd if number == odd.rank else rank(number) for number in range(4)), *others)


_WENT = (Thread(tid=102, frames=ASLEEP),), (Thread(tid=102, frames=("job/parse.py:19 in parse", *ASLEEP[1:])),)
MOVES = with_odd(rank(2, looks=_WENT))
STOPPED = with_odd(rank(2, looks=(), hindrance="stopped"))
MISSING = job(*(rank(number) for number in (0, 1, 3)), missing=(2,))
BEHIND = with_odd(rank(2, ASLEEP))
LOCKED = with_odd(rank(2, ASLEEP, gil=True, cpu_share=1.0))
OTHER = with_odd(rank(2, BARRIER))
INSIDE = job(*(rank(number) for number in range(4)))
SERVER = Process(pid=900, role="reward", looks=((Thread(tid=900, frames=("job/judge.py:5 in judge",)),),) * 3)
REWARD = with_odd(rank(2, READS, peers=(Peer(tid=102, how="socket", pid=900, address="127.0.0.1:8000"),)), SERVER)
FAR = with_odd(rank(2, READS, peers=(Peer(tid=102, how="socket", address="10.0.0.9:8000"),)))

CASES: dict[str, tuple[Facts, Facts]] = {
    "HNG001": (STOPPED, MOVES),
    "HNG002": (BEHIND, MOVES),
    "HNG003": (OTHER, MOVES),
    "HNG004": (INSIDE, MOVES),
}
