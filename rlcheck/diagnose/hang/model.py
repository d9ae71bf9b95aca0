"""What is said of a job that stands still."""

from __future__ import annotations

from typing import Literal

from rlcheck.facts.base import Struct

Kind = Literal["behind", "mismatch", "no dump", "not started", "circle", "inside"]
"""Why a rank is a culprit: it has not called what others wait in; it has called something else; it left no dump; its
GPU has not begun what the others' have; ranks wait for each other in a circle; all are in the same call, which does not
end."""


class Culprit(Struct, frozen=True, omit_defaults=False):
    """A rank that others wait for, and that waits for none of them.

    `call`: where it sits, or the last call that is known of it; "" where nothing is. `lacks`: the first call of others
    that it has not made. `waited_for_by`: ranks. `stack`: where its threads are, the innermost frame first.
    """

    rank: int
    kind: Kind
    call: str = ""
    lacks: str = ""
    stack: tuple[str, ...] = ()
    role: str = ""
    node: str = ""
    waited_for_by: tuple[int, ...] = ()


class Wait(Struct, frozen=True, omit_defaults=False):
    """RANK has called CALL, and waits in it for ranks FOR. `group`: of ranks, as the job calls it."""

    rank: int
    call: str
    group: str
    waits_for: tuple[int, ...]


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
