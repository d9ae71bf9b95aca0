"""What dumps, files of stacks and live processes share: the ends of a graph of waiting, and what a stack waits in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

Frame = tuple[str, str, str]
"""File, line, function."""
_WAITS = re.compile(
    r"torch/distributed/(?!elastic/|launcher/|run\.py)|torch/cuda/(__init__|streams)\.py|/nccl|pynccl|parallel_state\.py"
)
"""Files of the innermost frames of a thread that waits for other ranks, or for a GPU that does."""
_WAIT_FUNCTIONS = frozenset(("synchronize", "all_reduce", "all_gather", "broadcast", "barrier", "reduce_scatter_tensor",
                             "all_gather_into_tensor", "all_to_all_single", "wait_event", "wait_stream"))  # fmt: skip


class Stack(msgspec.Struct, frozen=True):
    """The main thread of one process, the innermost frame first: `train.py:88 in step`. `role`: of its file's name."""

    path: str
    rank: int
    frames: tuple[str, ...]
    in_collective: bool
    role: str = ""


def bottoms(targets: Mapping[int, set[int]]) -> list[list[int]]:
    """Sets of ranks that reach each other and no other, and that are waited for."""
    reach: dict[int, set[int]] = {}
    for start in targets:
        seen, todo = set[int](), [start]
        while todo:
            for target in targets.get(todo.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        reach[start] = seen
    every = set[int]().union(*targets.values()) if targets else set[int]()
    sinks = [[rank] for rank in sorted(every) if rank not in targets]
    ended = {rank for rank in targets if any(sink[0] in reach[rank] for sink in sinks)}
    circles: list[list[int]] = []
    for rank in sorted(set(targets) - ended):
        circle = sorted(other for other in reach[rank] if rank in reach.get(other, ()))
        if circle and reach[rank] <= set(circle) and circle not in circles:
            circles.append(circle)
    return [*sinks, *circles]


def ranks_words(ranks: Sequence[int | None], most: int = 8) -> str:
    """`rank 3`, `ranks 0, 1, 2 and 13 more`."""
    shown = ", ".join(map(str, ranks[:most]))
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}{more}"


def in_collective(thread: Sequence[Frame]) -> bool:
    """Whether one of the innermost frames waits for other ranks."""
    return any(_WAITS.search(file) or function in _WAIT_FUNCTIONS for file, _, function in thread[:6])
