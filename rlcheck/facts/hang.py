"""A job that stands still: in what its processes were seen, and what is said of it."""

from __future__ import annotations

from typing import Literal

from rlcheck.facts.base import Struct
from rlcheck.facts.flight import Dump

PID_BITS = 22
"""Of a process's number on Linux; what is above them is the number of its machine, where several were looked at."""
Kind = Literal["behind", "mismatch", "no dump", "not started", "circle", "inside", "stopped", "gone", "gil", "stuck"]
"""Why a rank is a culprit: it has not called what others wait in; it has called something else; it left no dump; its
GPU has not begun what the others' have; ranks wait for each other in a circle; all are in the same call, which does not
end. Of live processes: it is stopped, or waits in the kernel; it is gone; a thread keeps the interpreter lock; what it
is in does not end."""


class Culprit(Struct, frozen=True, omit_defaults=False):
    """A rank, or a process of another role (`rank` is None), that others wait for and that waits for none of them.

    `call`: where it sits, or the last call that is known of it; "" where nothing is. `lacks`: the first call of others
    that it has not made. `waited_for_by`: ranks. `stack`: where its threads are, the innermost frame first.
    """

    rank: int | None
    kind: Kind
    call: str = ""
    lacks: str = ""
    stack: tuple[str, ...] = ()
    role: str = ""
    node: str = ""
    waited_for_by: tuple[int, ...] = ()
    pid: int = 0


class Wait(Struct, frozen=True, omit_defaults=False):
    """RANK has called CALL, and waits in it for ranks WAITS_FOR. `group`: of ranks, as the job calls it.

    `who`, `whom`: the same in words, of live processes, which need not be ranks (`rank` is None): `controller`.
    """

    rank: int | None
    call: str
    group: str
    waits_for: tuple[int, ...]
    who: str = ""
    whom: tuple[str, ...] = ()


class Hang(Struct, frozen=True, omit_defaults=False):
    """A job that stands still: the ranks that hold it up, and who waits in what.

    `dumps`: ranks that left one; `missing`: ranks that groups name and that left none. `said`: the verdict in a
    sentence. `longest_s`: how long the first open call had been waited in when the last dump was written, as far as
    the dumps tell. `steps`: what to do, in order.
    """

    said: str
    culprits: tuple[Culprit, ...] = ()
    waits: tuple[Wait, ...] = ()
    dumps: int = 0
    missing: tuple[int, ...] = ()
    longest_s: float | None = None
    steps: tuple[str, ...] = ()


class Thread(Struct, frozen=True):
    """A thread in Python code. `frames`: `train.py:88 in step`, the innermost first. `gil`: it keeps the interpreter's
    lock. `tid`: the kernel's number."""

    tid: int
    frames: tuple[str, ...]
    name: str = ""
    gil: bool = False


class Peer(Struct, frozen=True):
    """Whom a thread TID reads from: process `pid` of this node (0: none), `address` of a socket. `how`: socket, pipe,
    child; polled: it waits for one of several."""

    tid: int
    how: str
    pid: int = 0
    address: str = ""


class Process(Struct, frozen=True):
    """A process of a job, as often as it was looked at.

    `rank`: None for one that is none; `world`: ranks of its job, 0: unknown; `job`: ranks of one job share it. `title`:
    its command line. `hindrance`: what keeps it from going on at all. `looks`: its threads each time, the main one
    first; () where they could not be seen. `cpu_share`: of one CPU between first and last look; `wakes_per_s`: how
    often its main thread woke up. `peers`: at the last.
    `runs`: the method that Ray runs there. `node`: its machine, where several were looked at. `ends`: addresses of its
    own ends of connections to other machines.
    """

    pid: int
    role: str
    title: str = ""
    parent: int = 0
    rank: int | None = None
    world: int = 0
    job: str = ""
    hindrance: str = ""
    looks: tuple[tuple[Thread, ...], ...] = ()
    cpu_share: float = 0.0
    wakes_per_s: float = 0.0
    peers: tuple[Peer, ...] = ()
    runs: str = ""
    node: str = ""
    ends: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """Its number on its machine: `pid` is one that no process of another machine has (`PID_BITS`)."""
        return self.pid & ((1 << PID_BITS) - 1)


class HangFacts(Struct, frozen=True):
    """One job on one node. `watched_s`: between first and last look. `missing`: ranks of this node without a process;
    `elsewhere`: ranks on other nodes, which were not looked at. `recorded`: what flight recorders held of ranks that
    gave it on request; `went_on`: a moment later they held other calls; `open_s`: how long ago the first call was
    queued that is still open in them. `notes`: what could not be looked at."""

    processes: tuple[Process, ...] = ()
    watched_s: float = 0.0
    missing: tuple[int, ...] = ()
    elsewhere: tuple[int, ...] = ()
    recorded: tuple[Dump, ...] = ()
    went_on: bool = False
    open_s: float | None = None
    notes: tuple[str, ...] = ()
