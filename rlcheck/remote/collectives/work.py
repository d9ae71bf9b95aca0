"""How fast each rank's device computes: a matrix product and an attention, beside one other rank, then another."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from .correctness import Place
from .operations import Call

KINDS = ("product", "attention")
TURNS = 2
"""Beside the one neighbour, then beside the other: what is slow with one partner alone is no slow device."""
MOST_S = 2.0
"""Both turns are taken again while one rank seems slow, as long as that keeps within this: other work on a busy machine
slows any of them for a while. A step has a deadline."""
AGAIN_BELOW = 0.9
BATCHES = 3
LEAST_BATCH_S = {"cuda": 0.02, "cpu": 0.04}
"""Longer than a slice of time that a device or a scheduler gives to another program."""
MOST_CALLS = 1000
IN_A_ROW = 4
"""Up to so many CPU ranks the pairs go one after the other: on one machine they would share its cores."""
_PRODUCT = {"cuda": 4096, "cpu": 384}
_ATTENTION = {"cuda": (4, 16, 2048, 128), "cpu": (1, 4, 256, 64)}


def measure(place: Place, before_call: Callable[[str], None]) -> dict[str, Any]:
    """Time both on this rank's device, in float16 on a GPU and float32 on a CPU.

    Returns:
        work: by kind the seconds of one call in each turn (the best batch), -1 where this rank had nothing to do.
        Or skipped: why nothing was measured on any rank.
    """
    calls, why = _prepare(place)
    if _most(place, 0.0 if calls else 1.0):
        return {"skipped": ["product and attention: %s" % (why or "another rank cannot run them")]}
    found: dict[str, list[float]] = {kind: [-1.0] * TURNS for kind in KINDS}
    started, rounds = time.perf_counter(), 1
    while True:
        for turn in range(TURNS):
            for kind in KINDS:
                before_call("%s, turn %d" % (kind, turn + 1))
                seconds = _beside(place, calls[kind], turn)
                known = found[kind][turn]
                found[kind][turn] = min(known, seconds) if known > 0 else seconds
        spent_s = time.perf_counter() - started
        # All of it, lest ranks differ in which of these collectives they take.
        even = [_is_even(place, min(found[kind])) for kind in KINDS]
        if all(even) or _most(place, spent_s * (1 + 1 / rounds)) > MOST_S:
            break
        rounds += 1
    del calls
    if place.device.type == "cuda":
        place.torch.cuda.empty_cache()
    return {"work": found}


def pair_of(index: int, size: int, turn: int) -> int:
    """The number of the pair that rank `index` of `size` is in; of an odd number one rank is alone."""
    return ((index + turn) % size) // 2


def _prepare(place: Place) -> tuple[dict[str, Call], str]:
    torch, kind = place.torch, place.device.type
    dtype = torch.float16 if kind == "cuda" else torch.float32
    try:
        size = _PRODUCT[kind]
        first, second = (torch.randn(size, size, device=place.device, dtype=dtype) for _ in range(2))
        target = torch.empty_like(first)
        query, key, value = (torch.randn(_ATTENTION[kind], device=place.device, dtype=dtype) for _ in range(3))
        attend = torch.nn.functional.scaled_dot_product_attention
        calls: dict[str, Call] = {
            "product": lambda: torch.mm(first, second, out=target),
            "attention": lambda: attend(query, key, value, is_causal=True),
        }
        for call in calls.values():
            call()
        if kind == "cuda":
            torch.cuda.synchronize()
    except (RuntimeError, AttributeError, MemoryError) as error:
        return {}, " ".join(str(error).split())[:160]
    return calls, ""


def _beside(place: Place, call: Call, turn: int) -> float:
    """Seconds of one call while the other rank of the pair calls it as well."""
    mine = pair_of(place.index, place.size, turn)
    one_by_one = place.device.type == "cpu" and place.size <= IN_A_ROW
    seconds: Optional[float] = None
    for pair in range((place.size + 1) // 2) if one_by_one else (mine,):
        _most(place, 0.0)
        if pair == mine:
            seconds = _timed(place, call)
    return -1.0 if seconds is None else seconds


def _timed(place: Place, call: Call) -> float:
    """The best batch: other work on the machine can only make it slower."""
    once_s = max(_batch(place, call, 1), 1e-6)
    num_calls = int(max(1, min(MOST_CALLS, LEAST_BATCH_S[place.device.type] / once_s)))
    return min(_batch(place, call, num_calls) for _ in range(BATCHES))


def _batch(place: Place, call: Call, num_calls: int) -> float:
    if place.device.type == "cuda":
        place.torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(num_calls):
        call()
    if place.device.type == "cuda":
        place.torch.cuda.synchronize()
    return (time.perf_counter() - started) / num_calls


def _is_even(place: Place, seconds: float) -> bool:
    """Whether the slowest rank is about as fast as the quickest; the same on all ranks."""
    slowest = _most(place, seconds)
    quickest = -_most(place, -seconds)
    return quickest >= AGAIN_BELOW * slowest


def _most(place: Place, value: float) -> float:
    """The largest `value` of all ranks, which have all come here."""
    agreed = place.torch.tensor([value], dtype=place.torch.float64, device=place.device)
    place.dist.all_reduce(agreed, op=place.dist.ReduceOp.MAX)
    return float(agreed.cpu()[0])
