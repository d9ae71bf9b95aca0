"""Is the result of a collective right? If not: where, what was there, and whose part would explain it."""

from __future__ import annotations

import re
from typing import Any, Callable, NamedTuple, Optional

from . import patterns
from .operations import call_of

SHORT = 1021
LONG = 1 << 20
"""Elements: NCCL uses another protocol for long messages than for short ones."""
LONG_DTYPES = ("float32", "bfloat16")
_ROOT = 0
_UNSUPPORTED = re.compile(
    r"not support|unsupported|invalid scalar type|not implement|does not implement|cannot use", re.I
)


class Place(NamedTuple):
    """Where this rank is: in a group of `size`, at `index`, with tensors on `device`."""

    torch: Any
    dist: Any
    index: int
    size: int
    device: Any


class Trial(NamedTuple):
    """Buffers of one call, what should come out (int64 on the CPU), and who explains a difference."""

    source: Any
    target: Any
    expected: Any
    explain: Callable[[Any], list[int]]


def check(place: Place, collective: str, dtypes: list[str], before_call: Callable[[str], None]) -> dict[str, Any]:
    """Run `collective` on every dtype and compare.

    Returns:
        checked: dtypes that ran. skipped: what the backend lacks, in its words. wrong: first difference of each.
    """
    found: dict[str, Any] = {"checked": [], "skipped": [], "wrong": []}
    for dtype in dtypes:
        for length in (SHORT, LONG) if dtype in LONG_DTYPES else (SHORT,):
            try:
                wrong = _try(place, collective, dtype, length, before_call)
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                if not _UNSUPPORTED.search(str(error)):
                    raise
                found["skipped"].append("%s %s: %s" % (collective, dtype, _one_line(error)))
                break
            if dtype not in found["checked"]:
                found["checked"].append(dtype)
            # Not the end of it: the others, whose result may be right, go on with the next call.
            if wrong is not None and wrong["dtype"] not in [earlier["dtype"] for earlier in found["wrong"]]:
                found["wrong"].append(wrong)
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split("Exception raised from")[0].split())[:160]


def _try(
    place: Place, collective: str, dtype: str, length: int, before_call: Callable[[str], None]
) -> Optional[dict[str, Any]]:
    trial = _TRIALS[collective](place, dtype, length)
    call = call_of(place.dist, collective, trial.source, trial.target, place.index, place.size)
    before_call("%s %s" % (collective, dtype))
    call()
    found = trial.target.to("cpu")
    expected = trial.expected.to(found.dtype)
    if place.torch.equal(found, expected):
        return None
    where = (found != expected).nonzero().flatten()
    first = int(where[0])
    difference = found.to(place.torch.float64) - trial.expected.to(place.torch.float64)
    return {
        "collective": collective,
        "dtype": dtype,
        "index": first,
        "found": "%g" % float(found[first]),
        "expected": "%d" % int(trial.expected[first]),
        "suspects": trial.explain(difference),
    }


def _on(place: Place, numbers: Any, dtype: str) -> Any:
    return numbers.to(getattr(place.torch, dtype)).to(place.device).clone()


def _blank(place: Place, length: int, dtype: str) -> Any:
    return place.torch.zeros(length, dtype=getattr(place.torch, dtype), device=place.device)


def _moved(place: Place, rank: int, dtype: str, length: int, start: int = 0) -> Any:
    return patterns.stretch(place.torch, patterns.values(place.torch, rank, dtype), length, start)


def _missing_or_twice(place: Place, parts: list[Any], start: int) -> Callable[[Any], list[int]]:
    """Ranks whose part is missing in the sum, or in it twice."""

    def explain(difference: Any) -> list[int]:
        found: list[int] = []
        for rank, part in enumerate(parts):
            whole = patterns.stretch(place.torch, part, len(difference), start).to(place.torch.float64)
            if bool(whole.any()) and bool(place.torch.equal(difference.abs(), whole)):
                found.append(rank)
        return found

    return explain


def _owners(place: Place, length: int) -> Callable[[Any], list[int]]:
    """Ranks whose blocks of `length` are not right."""

    def explain(difference: Any) -> list[int]:
        return [int(block) for block in place.torch.unique(difference.nonzero().flatten() // length)]

    return explain


def _terms(place: Place, dtype: str) -> list[Any]:
    return [patterns.terms(place.torch, rank, place.size, dtype) for rank in range(place.size)]


def _all_reduce(place: Place, dtype: str, length: int) -> Trial:
    parts = _terms(place, dtype)
    own = _on(place, patterns.stretch(place.torch, parts[place.index], length), dtype)
    total = patterns.stretch(place.torch, place.torch.stack(parts).sum(0), length)
    return Trial(own, own, total, _missing_or_twice(place, parts, 0))


def _all_reduce_max(place: Place, dtype: str, length: int) -> Trial:
    parts = place.torch.stack([patterns.values(place.torch, rank, dtype) for rank in range(place.size)])
    largest = parts.max(0)
    own = _on(place, patterns.stretch(place.torch, parts[place.index], length), dtype)

    def explain(difference: Any) -> list[int]:
        owners = patterns.stretch(place.torch, largest.indices, length)[difference != 0].unique()
        return [int(owners[0])] if len(owners) == 1 else []

    return Trial(own, own, patterns.stretch(place.torch, largest.values, length), explain)


def _all_gather(place: Place, dtype: str, length: int) -> Trial:
    length = max(1, length // place.size)
    expected = place.torch.cat([_moved(place, rank, dtype, length) for rank in range(place.size)])
    own = _on(place, _moved(place, place.index, dtype, length), dtype)
    return Trial(own, _blank(place, len(expected), dtype), expected, _owners(place, length))


def _reduce_scatter(place: Place, dtype: str, length: int) -> Trial:
    length = max(1, length // place.size)
    parts, start = _terms(place, dtype), place.index * length
    source = _on(place, patterns.stretch(place.torch, parts[place.index], length * place.size), dtype)
    total = patterns.stretch(place.torch, place.torch.stack(parts).sum(0), length, start)
    return Trial(source, _blank(place, length, dtype), total, _missing_or_twice(place, parts, start))


def _broadcast(place: Place, dtype: str, length: int) -> Trial:
    expected = _moved(place, _ROOT, dtype, length)
    own = _on(place, expected, dtype) if place.index == _ROOT else _blank(place, length, dtype)
    return Trial(own, own, expected, lambda _: [_ROOT])


def _all_to_all(place: Place, dtype: str, length: int) -> Trial:
    """Rank r sends to rank t the t-th block of its own numbers."""
    length = max(1, length // place.size)
    start = place.index * length
    expected = place.torch.cat([_moved(place, rank, dtype, length, start) for rank in range(place.size)])
    own = _on(place, _moved(place, place.index, dtype, length * place.size), dtype)
    return Trial(own, _blank(place, len(expected), dtype), expected, _owners(place, length))


def _sendrecv(place: Place, dtype: str, length: int) -> Trial:
    before = (place.index - 1) % place.size
    own = _on(place, _moved(place, place.index, dtype, length), dtype)
    return Trial(own, _blank(place, length, dtype), _moved(place, before, dtype, length), lambda _: [before])


_TRIALS: dict[str, Callable[[Place, str, int], Trial]] = {
    "all_reduce": _all_reduce,
    "all_reduce max": _all_reduce_max,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "sendrecv": _sendrecv,
}
