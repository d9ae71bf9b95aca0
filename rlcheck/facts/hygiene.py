"""Making sure that a collected section can be written, sent and read again, whatever the machine put into it."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from rlcheck.facts.base import Fact, MissingKind, missing

T = TypeVar("T")

MAX_INTEGER = (1 << 64) - 1
# What JSON may lose or other readers refuse: nulls (NaN and infinity become one) and integers beyond 64 bits.
_DOUBTFUL = re.compile(rb"\d{19}|null")
_SURROGATE = re.compile("[\ud800-\udfff]")


def made_safe(section: str, fact: Fact[Any]) -> Fact[Any]:
    """`fact` as it will be read back: undecodable bytes replaced; missing when it is nothing that JSON can hold."""
    type_: Any = Fact if fact.value is None else Fact[type(fact.value)]
    try:
        try:
            data = msgspec.json.encode(fact)
        except UnicodeEncodeError:  # bytes that are no UTF-8 arrive in file names and variables as lone surrogates
            fact = without_surrogates(fact, type_)
            data = msgspec.json.encode(fact)
        if _DOUBTFUL.search(data):
            refuse_giants(msgspec.json.decode(data))
            msgspec.json.decode(data, type=type_)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return missing(MissingKind.ERROR, f"the {section} probe returned what no facts file can hold: {error}")
    return fact


def refuse_giants(tree: Any) -> None:
    """Make sure that no number in decoded JSON is beyond 64 bits, which no kernel and no tool has a use for.

    Raises:
        ValueError: there is one.
    """
    stack = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, int) and abs(item) > MAX_INTEGER:
            raise ValueError("an integer beyond 64 bits")
        if isinstance(item, dict):
            stack += item.values()  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        elif isinstance(item, list):
            stack += item  # pyright: ignore[reportUnknownArgumentType]


def without_surrogates(document: T, type_: type[T]) -> T:
    """A copy of a struct with every lone surrogate in it replaced, so that it can be encoded."""
    return msgspec.convert(_replaced(msgspec.to_builtins(document)), type_)


def _replaced(tree: Any) -> Any:
    """A copy of builtin data with every lone surrogate replaced."""
    if isinstance(tree, str):
        return _SURROGATE.sub("\ufffd", tree)
    if isinstance(tree, dict):
        items: list[tuple[Any, Any]] = list(tree.items())  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return {_replaced(key): _replaced(value) for key, value in items}
    if isinstance(tree, list | tuple):
        return [_replaced(item) for item in tree]  # pyright: ignore[reportUnknownVariableType]
    return tree
