"""The numbers of out-of-memory messages in words: what was asked for, what was free, and who held the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rlcheck.diagnose.decode import Decoder

_UNITS = {
    "bytes": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
}
_SIZE = rf"([\d.]+) ?({'|'.join(_UNITS)})"
_WANT = re.compile(rf"(?:Tried to allocate|^) ?{_SIZE}")
_OF_MESSAGE = {
    # torch 2.1 wrote "capacty"; before that: (GPU 0; 23.69 GiB total capacity; ... already allocated; ... free; ...)
    "total": (re.compile(rf"total capac\w+ of {_SIZE}"), re.compile(rf"{_SIZE} total capacity")),
    "free": (re.compile(rf"of which {_SIZE} is free"), re.compile(rf"{_SIZE} free")),
    "allocated": (re.compile(rf"{_SIZE} is allocated by PyTorch"), re.compile(rf"{_SIZE} already allocated")),
    "spare": (re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),),
    "reserved": (re.compile(rf"{_SIZE} (?:reserved in total|cached)"),),
    "own": (re.compile(rf"this process has {_SIZE} memory in use"),),
}
_PROCESS = re.compile(rf"Process \d+ has {_SIZE} memory in use")
_CONTEXT = 3 * 2.0**30
"""Bytes that a process may hold beside its tensors: CUDA context, NCCL buffers, libraries' workspaces."""


def _bytes(match: re.Match[str] | None) -> float | None:
    if match is None:
        return None
    try:
        return float(match[1]) * _UNITS[match[2]]
    except ValueError:
        return None


def shown(size: float) -> str:
    """Bytes as a reader wants them.

    >>> shown(14935949148), shown(79691776)
    ('13.9 GiB', '76 MiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _numbers(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, patterns in _OF_MESSAGE.items():
        for pattern in patterns:
            size = _bytes(pattern.search(text))
            if size is not None:
                found[name] = size
                break
    if "spare" not in found and "reserved" in found and "allocated" in found:
        found["spare"] = max(0.0, found["reserved"] - found["allocated"])
    return found


def _of_others(text: str, numbers: Mapping[str, float]) -> float:
    """Bytes that other processes of the card hold.

    Where the message does not say which process is its own, that is the one whose memory fits its tensors best.
    """
    sizes = [size for size in map(_bytes, _PROCESS.finditer(text)) if size is not None]
    if "own" in numbers:
        return sum(sizes)
    tensors = numbers.get("allocated", 0.0) + numbers.get("spare", 0.0)
    mine = [size for size in sizes if tensors <= size * 1.01 and size - tensors <= _CONTEXT * 2]
    return sum(sizes) - (min(mine) if mine else max(sizes, default=0.0))


def _oom(groups: Mapping[str, str]) -> dict[str, str]:
    """`oom_text` (what follows "out of memory.") -> `oom_want`, `oom_reading` and what else the message tells."""
    text = groups["oom_text"]
    text = text if "Tried to allocate" in text else f"Tried to allocate{text}"
    want, numbers = _bytes(_WANT.search(text)), _numbers(text)
    if want is None:
        return {}
    others = _of_others(text, numbers)
    params = {f"oom_{name}": shown(size) for name, size in numbers.items()} | {"oom_want": shown(want)}
    return params | {"oom_reading": "; ".join(_reading(want, numbers, others))}


def _reading(want: float, numbers: Mapping[str, float], others: float) -> list[str]:
    free, total = numbers.get("free"), numbers.get("total")
    said = [f"{shown(want)} asked for in one piece"]
    if free is not None and total is not None:
        said[0] += f", {shown(free)} of {shown(total)} free"
    if total is not None and want > total:
        return [*said, "that is more than the whole card has: the request itself is too large"]
    if "allocated" in numbers:
        said.append(f"this process's tensors hold {shown(numbers['allocated'])}")
    if others >= 2**29:
        said.append(f"other processes hold {shown(others)}")
    spare = numbers.get("spare", 0.0)
    if spare >= max(want, 2**29):
        said.append(f"{shown(spare)} more is kept by the allocator in pieces that are too small (fragmentation)")
    if total is not None and want > total / 4:
        said.append("a single tensor of this size points to one batch that is too large, not to a leak")
    return said


def _host(groups: Mapping[str, str]) -> dict[str, str]:
    return {"host_size": shown(float(groups["host_bytes"]))} if groups["host_bytes"].isdigit() else {}


def _host_words(groups: Mapping[str, str]) -> dict[str, str]:
    return {"host_size": groups["host_want"]}


DECODERS: dict[str, Decoder] = {"oom_text": _oom, "host_bytes": _host, "host_want": _host_words}
