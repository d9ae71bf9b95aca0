"""The collectives, called as training calls them: looked up in torch.distributed at each call, never kept."""

from __future__ import annotations

from typing import Any, Callable

Call = Callable[[], None]


def call_of(dist: Any, collective: str, source: Any, target: Any, index: int, size: int) -> Call:
    """One call of `collective` from `source` into `target`; all_reduce, max and broadcast work in place on `target`.

    Rank 0 of the group broadcasts.

    Args:
        dist: torch.distributed, with a default group of `size` ranks of which this is `index`.
        collective: all_reduce, all_reduce max, all_gather, reduce_scatter, broadcast, all_to_all or sendrecv.
        source: the tensor that is sent.
        target: the tensor that receives.
        index: this rank in the group.
        size: how many ranks the group has.
    """
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(target),
        "all_reduce max": lambda: dist.all_reduce(target, op=dist.ReduceOp.MAX),
        "all_gather": lambda: _gather(dist)(target, source),
        "reduce_scatter": lambda: _scatter(dist)(target, source),
        "broadcast": lambda: dist.broadcast(target, 0),
        "all_to_all": lambda: dist.all_to_all_single(target, source),
        "sendrecv": lambda: _ring(dist, source, target, index, size),
    }
    return calls[collective]


def _gather(dist: Any) -> Any:
    return getattr(dist, "all_gather_into_tensor", None) or dist.all_gather_single


def _scatter(dist: Any) -> Any:
    return getattr(dist, "reduce_scatter_tensor", None) or dist.reduce_scatter_single


def _ring(dist: Any, source: Any, target: Any, index: int, size: int) -> None:
    steps = [
        dist.P2POp(dist.isend, source, (index + 1) % size),
        dist.P2POp(dist.irecv, target, (index - 1) % size),
    ]
    for work in dist.batch_isend_irecv(steps):
        work.wait()
