"""What flight recorders of torch.distributed hold: the calls that a rank has put into the queues of its groups."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class Call(Struct, frozen=True):
    """One operation that a rank has put into a group's queue.

    `number`: of collectives in the group. `peer`: of a point-to-point operation, as a rank of the group. `state`:
    `scheduled`, `started` or `completed`; gloo's are never more than scheduled, and `done` all the same.
    `frames`: `train.py:88 in step`, the innermost first.
    """

    group: str
    desc: str
    number: int
    name: str
    state: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...] = ()
    peer: int | None = None
    sends: bool = False
    created_ns: int = 0
    finished_ns: int = 0
    order: int = 0
    done: bool = False
    frames: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether it is waited in."""
        return self.state != "completed" and not self.done


class Dump(Struct, frozen=True):
    """What one rank's recorder held. `groups`: ranks by the group's key; `names`: how the job calls it. `enqueued`: the
    last number that a rank has queued in a group, where the recorder says so."""

    path: str
    rank: int
    groups: dict[str, tuple[int, ...]]
    names: dict[str, str]
    calls: tuple[Call, ...]
    enqueued: dict[str, int] = {}
