"""Mangled C++ names made readable, as far as it helps to see what is missing and why."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+")
_OLD_STRING = re.compile(r"(?<![0-9a-z])Ss|ESs|SsE?$")


def readable(symbol: str) -> str:
    """`c10::Error::Error(…)` of `_ZN3c105ErrorC2E…`; the symbol itself when it is of another form."""
    if not symbol.startswith("_Z"):
        return symbol
    rest = symbol[2:]
    nested = rest.startswith("N")
    rest = rest[1:].lstrip("rVK") if nested else rest
    parts: list[str] = []
    while match := _NUMBER.match(rest):
        length = int(match.group())
        name = rest[match.end() : match.end() + length]
        if len(match.group()) > 4 or len(name) != length:
            break
        parts.append(name)
        rest = rest[match.end() + length :]
        if not nested:
            break
    if nested and parts and rest[:2] in ("C1", "C2", "D0", "D1", "D2"):
        parts.append(("~" if rest[0] == "D" else "") + parts[-1])
    return "::".join(parts) + "(…)" if parts else symbol


def string_abi(symbol: str) -> str:
    """Which C++ string ABI a symbol was made with: "new", "old", or "" when it has no string in it."""
    if "__cxx11" in symbol:
        return "new"
    return "old" if _OLD_STRING.search(symbol) else ""
