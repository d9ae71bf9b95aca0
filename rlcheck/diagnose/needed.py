"""Plain texts of which every match of a regular expression holds at least one: the rarest such set.

The `literal` of a signature is such a text, too, but often a common word. In a gibibyte of log, what is rare is found
faster, and has not been seen twenty times before the failure comes.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_MOST = 12
"""Texts in a set: more of them cost more than they tell."""
_LONGEST = 60
_ENOUGH = 24
_RARE_ENOUGH = 60.0
_COST = 8.0
_SHORT = 7
# How often characters are written, in per cent, roughly; any other: 0.2.
_COMMON = {ord(" "): 15.0, **dict.fromkeys(b"etaoinsrhl", 6.0), **dict.fromkeys(b"dcufmpgwybv.,-_=/:k", 1.8)}

Texts = frozenset[str]


def rarity(text: bytes) -> float:
    """How surprising `text` is in a log: the higher, the rarer."""
    return -sum(math.log(_COMMON.get(byte, 0.2) / 100) for byte in text)


def needed(pattern: str, literal: str) -> Texts:
    """The rarest set of texts of which one is in every match; `literal` alone where nothing better is sure.

    >>> sorted(needed("Capture (?:CUDA|cuda) graph failed", "failed"))
    ['Capture CUDA graph failed', 'Capture cuda graph failed']
    """
    own = frozenset((literal,))
    try:
        # No public module tells what a pattern consists of; without this one the literals do, more slowly.
        parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    except ImportError:
        return own
    tree = parser.parse(pattern)
    if tree.state.flags & parser.SRE_FLAG_IGNORECASE:
        return own
    return frozenset(map(_core, max((own, _best(_sequence(tree))), key=_worth)))


def _worth(texts: Texts) -> float:
    """What is rare enough is not better for being rarer, but each further text costs, and so does a short one."""
    rarest = min((rarity(text.encode()) for text in texts), default=0.0)
    short = any(len(text) < _SHORT for text in texts)
    return min(rarest, _RARE_ENOUGH) - _COST * (math.log(len(texts) or 1) + 2 * short) + rarest / 100


def _core(text: str) -> str:
    """The rarest part of a text that is longer than need be."""
    if len(text) <= _ENOUGH:
        return text
    return max(
        (text[at : at + _ENOUGH] for at in range(len(text) - _ENOUGH + 1)), key=lambda part: rarity(part.encode())
    )


def _best(sets: Iterable[Texts]) -> Texts:
    nothing: Texts = frozenset()
    return max(sets, key=_worth, default=nothing)


def _sequence(items: Iterable[tuple[Any, Any]]) -> list[Texts]:
    """The sets of which each has a member in every match of this sequence."""
    found: list[Texts] = []
    exact: Texts = frozenset(("",))
    for operation, argument in items:
        texts = _exactly(str(operation), argument)
        joined = frozenset(left + right for left in exact for right in texts)
        if texts and len(joined) <= _MOST and max(map(len, joined)) <= _LONGEST:
            exact = joined
            continue
        found.append(exact)
        exact = texts if 0 < len(texts) <= _MOST else frozenset(("",))
        if not texts:
            found += _somewhere(str(operation), argument)
    found.append(exact)
    return [texts for texts in found if "" not in texts]


def _exactly(operation: str, argument: Any) -> Texts:
    """All texts that this item matches, when they are few; none when they are many or not known."""
    if operation == "LITERAL":
        # In the log, the prefix of the next line is behind a line break.
        return frozenset((chr(argument),)) if argument != ord("\n") else frozenset()
    if operation == "AT":
        return frozenset(("",))
    if operation == "IN" and len(argument) <= 4 and all(str(kind) == "LITERAL" for kind, _ in argument):
        return frozenset(chr(code) for _, code in argument)
    if operation == "BRANCH":
        return _all_of([_exactly_all(part) for part in argument[1]])
    if operation == "SUBPATTERN":
        return frozenset() if argument[1] else _exactly_all(argument[3])
    if operation in ("MAX_REPEAT", "MIN_REPEAT") and argument[:2] == (0, 1):
        texts = _exactly_all(argument[2])
        return texts | {""} if texts else texts
    return frozenset()


def _exactly_all(items: Iterable[tuple[Any, Any]]) -> Texts:
    exact: Texts = frozenset(("",))
    for operation, argument in items:
        exact = frozenset(left + right for left in exact for right in _exactly(str(operation), argument))
        if not exact or len(exact) > _MOST:
            return frozenset()
    return exact


def _all_of(parts: Sequence[Texts]) -> Texts:
    """The union, if each part has something and all together are few."""
    union = frozenset[str]().union(*parts)
    return union if all(parts) and len(union) <= _MOST else frozenset()


def _somewhere(operation: str, argument: Any) -> list[Texts]:
    """The sets of which each has a member in every match of this item, which can match many texts."""
    if operation == "BRANCH":
        union = _all_of([_best(_sequence(part)) for part in argument[1]])
        return [union] if union else []
    if operation == "SUBPATTERN":
        return [] if argument[1] else _sequence(argument[3])
    if operation in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] > 0:
        return _sequence(argument[2])
    return []
