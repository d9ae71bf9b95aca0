"""Reading the small text files of /proc and /sys: numbers, lists of numbers, fields. Nothing in here raises."""

from __future__ import annotations

from rlcheck.facts.base import Fact, MissingKind, known, missing
from rlcheck.measure.machine.context import ProbeContext

_LARGEST = 1 << 63
_MOST_IDS = 1 << 16


def to_int(text: str, base: int = 10) -> int | None:
    """The whole number in `text`, or None when it is none that a kernel would print."""
    try:
        number = int(text.strip()[:32], base)
    except ValueError:
        return None
    return number if -_LARGEST <= number < 2 * _LARGEST else None


def read_int(context: ProbeContext, path: str, base: int = 10) -> Fact[int]:
    """The number that is all there is in a file."""
    text = context.read_text(path, 256)
    if text.value is None:
        return missing_like(text)
    number = to_int(text.value, base)
    return missing(MissingKind.ERROR, f"{path}: not a number: {text.value[:40]!r}") if number is None else known(number)


def read_word(context: ProbeContext, path: str, limit: int = 4096) -> Fact[str]:
    """The text of a file without the white space around it."""
    text = context.read_text(path, limit)
    return known(text.value.strip(" \t\r\n\0")) if text.value is not None else text


def missing_like(fact: Fact[str] | Fact[list[str]]) -> Fact[int]:
    """The reason of another fact, for a value that was to be read from it."""
    return Fact(missing=fact.missing)


def id_list(text: str) -> tuple[int, ...]:
    """The numbers of a kernel list such as `0-3,8`; what is not a number or a range is passed over."""
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        first = to_int(low)
        last = to_int(high) if high else first
        if first is None or last is None or not 0 <= first <= last < _MOST_IDS:
            continue
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def fields(text: str) -> dict[str, str]:
    """The `Name: value` lines of a /proc file; the first of a name counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found
