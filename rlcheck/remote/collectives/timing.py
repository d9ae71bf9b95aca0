"""How long a collective takes, as nccl-tests measures it: batches of calls on a clock that waits for the device."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable

from .correctness import Place
from .operations import Call, call_of

BATCHES = 5
FEW_BATCHES = 2
LONG_S = 0.1
"""A call that takes longer is made in few batches only."""
MOST_S = 1.5
"""For one call; a larger message of the same collective is left out when it would take longer."""
ALWAYS_BYTES = 1 << 20
"""Up to here nothing is left out: what is too slow at this size shall show."""
MOST_CALLS = 40
"""In one batch."""
_ELEMENT_BYTES = 4
_SHARED = ("all_gather", "reduce_scatter", "all_to_all")
_ROOMY_BYTES = 64 << 20


class History:
    """What a group has timed so far, from numbers that all ranks have agreed on: so they all leave out the same.

    Args:
        limit_s: after so much time, only what a verdict needs is still measured: all_reduce.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.started = time.perf_counter()
        self.spent_s = 0.0
        self.last: dict[str, tuple[int, float]] = {}

    def why_not(self, collective: str, num_bytes: int) -> str:
        """Why a size is left out; "" when it is not."""
        if num_bytes > ALWAYS_BYTES and collective in self.last:
            last_bytes, last_s = self.last[collective]
            if last_s * num_bytes / last_bytes > MOST_S:
                return "one call would take over %g s" % MOST_S
        if self.spent_s > self.limit_s and collective != "all_reduce":
            return "the time for this group, %g s, is over" % self.limit_s
        return ""

    def note(self, collective: str, num_bytes: int, once_s: float, spent_s: float) -> None:
        """Add a size: one call took `once_s`; `spent_s` have passed since the group was formed."""
        self.last[collective] = (num_bytes, once_s)
        self.spent_s = spent_s


def measure(
    place: Place,
    collective: str,
    num_bytes: int,
    budget_s: float,
    history: History,
    before_call: Callable[[str], None],
) -> dict[str, Any]:
    """Time `collective` on float32.

    Args:
        place: this rank in its group.
        collective: see `call_of`.
        num_bytes: size as nccl-tests counts it: the whole buffer of all ranks for all_gather, reduce_scatter and
            all_to_all; it is rounded down to what all ranks can share equally, but for less than one element each.
        budget_s: about how long all calls together may take.
        history: of this group, the same on all ranks.
        before_call: told what is called before each batch.

    Returns:
        num_bytes: the size in truth. seconds: median over the batches of the time of one call. num_calls. Or skipped.
    """
    name = "%s of %d bytes" % (collective, num_bytes)
    why_not = history.why_not(collective, num_bytes)
    if why_not:
        return {"skipped": ["%s: %s" % (name, why_not)]}
    call, true_bytes = _prepare(place, collective, num_bytes)
    before_call(name)
    call()
    once_s, spent_s = _agree(place, _clock(place, call, 1), time.perf_counter() - history.started)
    num_batches = BATCHES if once_s < LONG_S else FEW_BATCHES
    num_calls = int(max(1, min(MOST_CALLS, budget_s / num_batches / max(once_s, 1e-6))))
    history.note(collective, true_bytes, once_s, spent_s)
    times: list[float] = []
    for _ in range(num_batches):
        before_call(name)
        times.append(_clock(place, call, num_calls) / num_calls)
    del call
    if place.device.type == "cuda" and true_bytes >= _ROOMY_BYTES:
        place.torch.cuda.empty_cache()
    return {"num_bytes": true_bytes, "seconds": statistics.median(times), "num_calls": num_calls * num_batches}


def _prepare(place: Place, collective: str, num_bytes: int) -> tuple[Call, int]:
    length = max(1, num_bytes // _ELEMENT_BYTES)
    if collective in _SHARED:
        length = max(1, length // place.size) * place.size
    part = length // place.size
    source_length = part if collective == "all_gather" else length
    target_length = part if collective == "reduce_scatter" else length
    source = place.torch.ones(source_length, device=place.device)
    in_place = collective in ("all_reduce", "broadcast")
    target = source if in_place else place.torch.empty(target_length, device=place.device)
    return call_of(place.dist, collective, source, target, place.index, place.size), length * _ELEMENT_BYTES


def _agree(place: Place, *seconds: float) -> list[float]:
    """The longest times of all ranks: what follows from them must be the same for all, or somebody waits forever."""
    agreed = place.torch.tensor(seconds, dtype=place.torch.float32, device=place.device)
    place.dist.all_reduce(agreed, op=place.dist.ReduceOp.MAX)
    return [float(number) for number in agreed.cpu()]


def _clock(place: Place, call: Call, num_calls: int) -> float:
    """Seconds for `num_calls`, all ranks having started together."""
    place.dist.all_reduce(place.torch.zeros(1, device=place.device))
    if place.device.type == "cuda":
        start, end = (place.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(num_calls):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3
    started = time.perf_counter()
    for _ in range(num_calls):
        call()
    return time.perf_counter() - started
