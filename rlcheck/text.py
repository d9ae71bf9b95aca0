"""Sizes, counts and lists in words, each said one way everywhere."""

from __future__ import annotations

from collections.abc import Iterable

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BLOCKS = "▁▂▃▄▅▆▇█"
SEPARATOR = "\0"
"""Between the words of a parameter that stands for several: neither a variable nor a path holds it."""
_UNITS = (("TiB", GIB << 10), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))


def size_text(num_bytes: float) -> str:
    """Return a size with three digits, in words: `3.5 GiB`, `64 KiB`, `8 bytes`."""
    for unit, factor in _UNITS:
        if abs(num_bytes) >= factor:
            amount = num_bytes / factor
            return f"{amount:.3g} {unit}" if amount < 1000 else f"{int(amount)} {unit}"
    return f"{num_bytes:g} bytes"


def size_label(num_bytes: float) -> str:
    """Return the same for an axis or a cell of a table, where there is no room for a word: `8 B`."""
    return size_text(num_bytes).replace("bytes", "B")


def gib(num_bytes: float) -> str:
    """Return a size in GiB with one decimal, whatever its size: memory that a reader compares with other memory."""
    return f"{num_bytes / GIB:.1f} GiB"


def rough_gib(num_bytes: float) -> str:
    """Return a size as one names a machine: `80 GiB`, `1.5 GiB`."""
    return f"{num_bytes / GIB:.0f} GiB" if num_bytes >= 10 * GIB else gib(num_bytes)


def listed(items: Iterable[object], most: int = 8) -> str:
    """Return the first few, and how many more there are: `a, b and 3 more`."""
    texts = [str(item) for item in items]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def counted(number: int, word: str) -> str:
    """Return `1 GPU`, `2 GPUs`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def spaced(number: int) -> str:
    """Return a number with its thousands apart: `12 345`."""
    return f"{number:,}".replace(",", " ")


def sparkline(shares: Iterable[float], blocks: str = BLOCKS) -> str:
    """Return a block for each of SHARES, from 0 to 1; one beyond is drawn as the nearest.

    >>> sparkline([0, 0.5, 1])
    '▁▅█'
    """
    return "".join(blocks[min(max(int(share * len(blocks)), 0), len(blocks) - 1)] for share in shares)


def several(words: Iterable[str]) -> str:
    """Return a playbook's parameter that stands for several words of a command: names to unset, files to delete."""
    return SEPARATOR.join(words)
