"""What is measured: the request, the steps of a group of ranks, their sizes, time budgets and deadlines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlcheck.text import GIB, MIB, size_label

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")
DTYPES = ("float32", "bfloat16", "float16", "int64", "int32", "uint8")
FIRST_STEP = "first all_reduce"
WORK_STEP = "product and attention"

_CHECKS = (COLLECTIVES[0], "all_reduce max", *COLLECTIVES[1:])
_PAIR_CHECKS = ("all_reduce", "all_gather", "sendrecv")
_PAIR_COLLECTIVES = ("all_reduce", "sendrecv")
_MOST_BYTES = {"nccl": 4 * GIB, "gloo": 16 * MIB}
_PAIR_BYTES = {"nccl": 256 * MIB, "gloo": 4 * MIB}
_QUICK_BYTES = {"nccl": GIB, "gloo": 4 * MIB}
_QUICK_SIZES = (8, 64 << 10, MIB, 4 * MIB, 32 * MIB, 256 * MIB, GIB)
_PAIR_SIZES = (8, MIB, 4 * MIB, 32 * MIB, 256 * MIB)
_BUDGET_S = {"nccl": 0.4, "gloo": 0.2}
_QUICK_BUDGET_S = {"nccl": 0.1, "gloo": 0.04}
_PAIR_LIMIT_S, _QUICK_LIMIT_S, _LIMIT_S = 3.0, 10.0, 120.0
_QUICK_NODES = 16
"""Up to here all pairs are measured even with `--quick`."""
GLOO_DEADLINE_S = 10.0
"""A step on small CPU messages takes milliseconds; this is for machines that do other things as well."""
_WORK_TIMES = 3.0
"""Computing takes longer than a message where a machine does other things as well; a rank that hangs in it is rare."""
FREE_SHARE = 0.4
"""Of the memory that is free: a step needs up to two buffers of its size."""


@dataclass(frozen=True)
class Request:
    """What to measure.

    backend: auto, nccl or gloo. quick: fewer sizes, smaller budgets. max_bytes: the largest message (0: by backend
    and memory). ranks_per_node: 0 for one a GPU, one without. step_timeout_s: deadline of one step. pairs: all, quick
    (two partners for each), none, or auto: see `pairs_of`. python: the interpreter for the ranks, "" for the agents'
    own. launcher: how the board came about, for the record.
    """

    backend: str = "auto"
    quick: bool = False
    max_bytes: int = 0
    ranks_per_node: int = 0
    step_timeout_s: float = 30.0
    pairs: str = "auto"
    python: str = ""
    launcher: str = "local"


@dataclass(frozen=True)
class Step:
    """One step that all ranks of a group take. kind: connect, check, work or time."""

    name: str
    kind: str
    collective: str = "all_reduce"
    num_bytes: int = 0
    budget_s: float = 0.0
    deadline_s: float = GLOO_DEADLINE_S
    log: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether it is taken only after all results were right."""
        return self.kind in ("work", "time")

    def message(self, with_log: bool = False) -> dict[str, Any]:
        """As the ranks get it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "collective": self.collective,
            "dtypes": DTYPES,
            "num_bytes": self.num_bytes,
            "budget_s": self.budget_s,
            "log": self.log and with_log,
        }


def deadline_s(request: Request, backend: str) -> float:
    """How long one step may take before it hangs."""
    return min(request.step_timeout_s, GLOO_DEADLINE_S) if backend == "gloo" else request.step_timeout_s


def pairs_of(request: Request, num_nodes: int) -> str:
    """all, quick or none: everybody meets everybody in as many rounds as there are nodes, if that is not too long."""
    if num_nodes < 3:
        return "none"
    if request.pairs != "auto":
        return request.pairs
    return "quick" if request.quick and num_nodes > _QUICK_NODES else "all"


def limit_s(phase: str, request: Request) -> float:
    """About how long the timed calls of a group may take together."""
    return _PAIR_LIMIT_S if phase == "pair" else _QUICK_LIMIT_S if request.quick else _LIMIT_S


def most_bytes(request: Request, backend: str, free_bytes: int) -> int:
    """The largest message: what was asked for, else the backend's, and never more than memory allows."""
    asked = request.max_bytes or (_QUICK_BYTES if request.quick else _MOST_BYTES)[backend]
    return max(8, min(asked, int(free_bytes * FREE_SHARE) if free_bytes else asked))


def sizes(phase: str, request: Request, backend: str, largest: int) -> tuple[int, ...]:
    """Message sizes, rising: steps of 8 from 8 B to the largest, or the quick ones."""
    if phase == "pair":
        largest = min(largest, _PAIR_BYTES[backend])
        return tuple(size for size in _PAIR_SIZES if size <= largest)
    if request.quick:
        return tuple(size for size in _QUICK_SIZES if size <= largest)
    found = [8]
    while found[-1] * 8 <= largest:
        found.append(found[-1] * 8)
    # The largest itself is measured, too, unless the last step has come close.
    return tuple(found) if found[-1] * 2 > largest else (*found, largest)


def steps(
    phase: str, request: Request, backend: str, num_ranks: int, largest: int, *, works: bool = False
) -> tuple[Step, ...]:
    """What a group does once it is formed. A rank alone only shows that collectives start and are right.

    `works`: each rank's device computes as well, beside another one.
    """
    within_s = deadline_s(request, backend)
    found = [Step(FIRST_STEP, "connect", deadline_s=within_s, log=backend == "nccl")]
    found += [
        Step(f"{name} correct", "check", name, deadline_s=within_s)
        for name in (_PAIR_CHECKS if phase == "pair" else _CHECKS)
        if num_ranks > 1 or name != "sendrecv"
    ]
    if num_ranks == 1:
        return tuple(found)
    # Before all else that is timed: a slow device shows even where the links then stall.
    found += [Step(WORK_STEP, "work", deadline_s=_WORK_TIMES * within_s)] if works else []
    budget_s = (_QUICK_BUDGET_S if request.quick or phase == "pair" else _BUDGET_S)[backend]
    found += [
        Step(f"{name} {size_label(size)}", "time", name, size, budget_s, within_s)
        for name in (_PAIR_COLLECTIVES if phase == "pair" else COLLECTIVES)
        for size in sizes(phase, request, backend, largest)
    ]
    return tuple(found)


def bus_factor(collective: str, num_ranks: int) -> float:
    """Bus bandwidth / algorithm bandwidth (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)."""
    factors: Mapping[str, float] = {
        "all_reduce": 2 * (num_ranks - 1) / num_ranks,
        "all_gather": (num_ranks - 1) / num_ranks,
        "reduce_scatter": (num_ranks - 1) / num_ranks,
        "all_to_all": (num_ranks - 1) / num_ranks,
    }
    return factors.get(collective, 1.0)
