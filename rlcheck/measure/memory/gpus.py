"""Which GPU a prediction is for: a name, a size, or this machine's smallest one."""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import Any

from rlcheck.errors import UserError
from rlcheck.measure.machine.local_gpus import Known
from rlcheck.tables import table
from rlcheck.text import MIB

_NOISE = re.compile(r"nvidia|amd|instinct|geforce|tesla|gpu|[^a-z0-9]")
_SIZE = re.compile(r"(\d{1,7}(?:\.\d{1,6})?)\s*([kmgt]?)(i?)b?", re.I)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_LEAST_BYTES = 1 << 28


class GpuError(UserError):
    """A name or size that says no GPU. The message is one line: what, and what to write instead."""


@cache
def _table() -> tuple[tuple[re.Pattern[str], Known], ...]:
    data = table("gpus", dict[str, Any])
    sources: dict[str, str] = data["sources"]
    rows: list[dict[str, Any]] = data["gpus"]
    return tuple(
        (re.compile(row["match"]), Known(row["name"], row["mib"] * MIB, sources[row["source"]])) for row in rows
    )


_MODEL = re.compile(r"[a-z]*\d+")


def by_name(text: str) -> Known:
    """The GPU that `text` names: `H200`, `NVIDIA H100 80GB HBM3`, `a100-40gb`.

    Raises:
        GpuError: no such GPU in the table, or several with different memory.
    """
    plain = _NOISE.sub("", text.lower())
    for pattern, known in _table():
        if pattern.fullmatch(plain):
            return known
    names = {_NOISE.sub("", known.name.lower()): known.name for _, known in _table()}
    meant = [name for key, name in names.items() if plain and key.startswith(plain)]
    if len(meant) > 1:
        raise GpuError(f"{text} comes with different amounts of memory: write {' or '.join(_typed(n) for n in meant)}")
    # Another number is another GPU with other memory, however close the names are (H800, H200).
    alike = [key for key in names if _MODEL.findall(key)[:1] == _MODEL.findall(plain)[:1]]
    near = meant or [names[key] for key in difflib.get_close_matches(plain, alike, 1)]
    hint = f"write {_typed(near[0])} if you mean that, or " if near else ""
    raise GpuError(f"no GPU {text!r} is known; {hint}give its memory: --gpu 80GiB")


def _typed(name: str) -> str:
    return name.lower().replace(" ", "-")


def parse_memory(text: str) -> int:
    """Bytes of `80GiB` (1024³), `80GB` (1000³), `81559MiB`; a bare letter (`80G`) counts by 1024.

    Raises:
        GpuError: no size, or less than 256 MiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise GpuError(f"{text} is no size; write it like 80GiB, 80GB or 81559MiB")
    decimal = text.strip().lower().endswith("b") and not match[3] and bool(match[2])
    num_bytes = int(float(match[1]) * (1000 if decimal else 1024) ** _POWERS[match[2].lower()])
    if num_bytes < _LEAST_BYTES:
        raise GpuError(f"{text} is {num_bytes} bytes, less than any GPU has; write it like 80GiB, 80GB or 81559MiB")
    return num_bytes
