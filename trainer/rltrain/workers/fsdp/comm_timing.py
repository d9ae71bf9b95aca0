"""Gradients on the wire: how long FSDP2's reductions take, and what goes in and comes out of them. Waits for others."""

# Torch and transformers are typed in part; the successor of reduce_scatter_tensor came with torch 2.13.
# pyright: reportDeprecated=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from rltrain.core.spent import SPENT
from rltrain.core.tensors import floats


@dataclass(frozen=True)
class Traffic:
    """One rank's part of the reductions of an update.

    `norm`: of all that it sent, its own gradients; `due`: the sum of their elements, as the reduction scales it;
    `got`: the sum of the elements that it received. Over all ranks `due` and `got` are equal but for rounding.
    """

    norm: float
    due: float
    got: float


class TimedReduceScatter:
    """FSDP2's default reduce-scatter between two time stamps (its `ReduceScatter` interface).

    Where a model has replicas, FSDP2 then adds up the shares of all of them, and calls `replicas_reduced`: the second
    stamp is moved there, and what this rank has received is what has come out of that.

    On CUDA the stamps are events on the stream of the collective: nothing waits for them, and the sum may overlap
    with computing. On a CPU the call blocks. Either way the time holds the wait for slower ranks.
    """

    def __init__(self, num_replicas: int = 1) -> None:
        self._num_replicas = num_replicas
        self._end_s = 0.0
        self._divisor = 1
        self._received: Tensor | None = None
        """Of what replicas reduced. Apart from `_traffic`, which is another stream's."""
        self._traffic: Tensor | None = None
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a collective's input or output."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce INPUT_TENSOR over GROUP, and keep this rank's share in OUTPUT_TENSOR."""
        total, square = _sum(input_tensor), _norm(input_tensor).square()
        work = self._timed(output_tensor, input_tensor, group, op, async_op)
        if not async_op and op in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            size = dist.get_world_size(group) if op == dist.ReduceOp.AVG else 1
            # The average over replicas leaves the sum over all ranks as it is; the sum multiplies it.
            self._divisor = 1 if op == dist.ReduceOp.AVG else self._num_replicas
            got = _sum(output_tensor) if self._num_replicas == 1 else torch.zeros_like(total)
            found = torch.stack([square, total / size, got])
            self._traffic = found if self._traffic is None else self._traffic + found
        return work

    def replicas_reduced(self, output_tensor: Tensor) -> None:
        """OUTPUT_TENSOR, this rank's share, has been added up over replicas."""
        if self._traffic is None:  # each rank is a replica: nothing was reduced before
            return
        if output_tensor.is_cuda and self._events:
            after = torch.cuda.Event(enable_timing=True)
            after.record()
            self._events[-1] = (self._events[-1][0], after)
        elif not output_tensor.is_cuda:
            self._seconds += (took := time.perf_counter() - self._end_s)
            SPENT.add(took)
        got = _sum(output_tensor) / self._divisor
        self._received = got if self._received is None else self._received + got

    def _timed(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool
    ) -> dist.Work | None:
        if output_tensor.is_cuda:
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            work = dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
            after.record()
            self._events.append((before, after))
            return work
        start = time.perf_counter()
        with SPENT.together():
            work = dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        self._end_s = time.perf_counter()
        self._seconds += self._end_s - start
        return work

    def sent(self) -> Tensor | None:
        """Squared norms of what this rank gave since `take_traffic`, summed: [], on the device, without a wait for it.

        None: nothing was reduced.
        """
        return None if self._traffic is None else self._traffic[0].clone()

    def take_traffic(self) -> Traffic | None:
        """What went over the wire since the last call of this; None: nothing. On CUDA it waits for the device."""
        if self._traffic is None:
            return None
        square, due, got = floats(self._traffic)
        got += 0.0 if self._received is None else float(self._received)
        self._traffic = self._received = None
        return Traffic(math.sqrt(square), due, got)

    def take_s(self) -> float:
        """Seconds since the last call of this. On CUDA it waits for the device."""
        if self._events:
            self._events[-1][1].synchronize()
            self._seconds += sum(before.elapsed_time(after) for before, after in self._events) / 1e3
        taken, self._seconds, self._events = self._seconds, 0.0, []
        return taken


class TimedAllGather:
    """FSDP2's default all-gather of weights, whose time counts as time with other ranks (its `AllGather` interface)."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a collective's input or output."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather the INPUT_TENSOR of all ranks of GROUP in OUTPUT_TENSOR."""
        if output_tensor.is_cuda:
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)
        with together(output_tensor):
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


WAITS = ("wait_for_unshard", "post_backward", "finalize_backward")
"""Methods of FSDP2's groups of parameters in which the stream that computes waits: for weights, for the reduction
before, for the last one. Beside the wait they copy weights and gradients."""
_COUNTED: set[type[Any]] = set()


def count_waits(groups: type[Any] = FSDPParamGroup) -> None:
    """Count as time with other ranks for how long the stream that computes stands still in `WAITS`. On CUDA.

    There collectives run beside the computing, on streams of their own: a rank that is a millisecond ahead waits for it
    in each of them, and computes meanwhile. Their own times added up would call the other rank slow. But one that is
    ahead by a layer stands still: for the next weights, or for the reduction before.
    """
    if groups in _COUNTED:
        return
    _COUNTED.add(groups)
    for name in WAITS:
        setattr(groups, name, _counted(getattr(groups, name)))


def _counted(act: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(act)
    def counted(self: Any, *words: Any, **named: Any) -> Any:
        if self.device.type != "cuda":
            return act(self, *words, **named)
        before = _mark()
        done = act(self, *words, **named)
        after = _mark()
        SPENT.later(lambda: _elapsed_s(before, after))
        return done

    return counted


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.default_stream())
    return event


@contextmanager
def together(tensor: Tensor) -> Generator[None]:
    """A block that is a collective on TENSOR, whose time counts as time with other ranks.

    On a device it is measured there: the call returns before the wait begins.
    """
    if not tensor.is_cuda:
        with SPENT.together():
            yield
        return
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    yield
    after.record()
    SPENT.later(lambda: _elapsed_s(before, after))


def _elapsed_s(before: torch.cuda.Event, after: torch.cuda.Event) -> float:
    after.synchronize()
    return before.elapsed_time(after) / 1e3


def _sum(tensor: Tensor) -> Tensor:
    """Of the elements. Added in float32, which is a twentieth of the time of float64 on a CPU; sums of sums are not."""
    return tensor.sum(dtype=torch.float32).double()


def _norm(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.float32).double()


def time_weights(model: nn.Module) -> None:
    """Count the gathering of the weights of all of MODEL's parts as time with other ranks, and on CUDA all `WAITS`."""
    count_waits()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(TimedAllGather())  # pyright: ignore[reportArgumentType]


def time_gradients(model: nn.Module, num_replicas: int = 1) -> TimedReduceScatter:
    """Time the reductions of all of MODEL's parts. A single rank makes none, nor one that holds a copy of its own."""
    timed = TimedReduceScatter(num_replicas)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(timed)  # pyright: ignore[reportArgumentType]
            if num_replicas > 1:
                module.set_all_reduce_hook(timed.replicas_reduced)
    return timed
