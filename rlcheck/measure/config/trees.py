"""Nested mappings with string keys, and their dotted keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

Tree = dict[str, Any]


def as_tree(value: object) -> Tree | None:
    """VALUE if it is a mapping, else None."""
    return cast(Tree, value) if isinstance(value, dict) else None


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; an empty mapping is a value."""
    for name, value in tree.items():
        inner = as_tree(value)
        if inner:
            yield from flatten(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def unflatten(values: Mapping[str, Any]) -> Tree:
    """The nested form of dotted keys; later keys win over what is in their way."""
    tree: Tree = {}
    for key, value in values.items():
        put(tree, key.split("."), value)
    return tree


def put(tree: Tree, parts: list[str], value: Any) -> None:
    """Set one value in TREE, in place; what is no mapping on the way there is replaced by one."""
    *above, last = parts
    section: Any = tree
    for part in above:
        below = _entry(section, part)
        if not isinstance(below, dict | list):
            below = {}
            _set(section, part, below)
        section = cast(Any, below)
    _set(section, last, value)


def _entry(section: Any, part: str) -> Any:
    if isinstance(section, list):
        entries = cast("list[Any]", section)
        return entries[int(part)] if part.isdecimal() and int(part) < len(entries) else None
    return section.get(part)


def _set(section: Any, part: str, value: Any) -> None:
    if isinstance(section, list):
        entries = cast("list[Any]", section)
        if part.isdecimal() and int(part) < len(entries):
            entries[int(part)] = value
    else:
        section[part] = value


class NoKeyError(Exception):
    """There is no such key in a tree."""


def find(tree: Any, parts: list[str]) -> Any:
    """What TREE holds there.

    Raises:
        NoKeyError: nothing.
    """
    node = tree
    for part in parts:
        if isinstance(node, dict) and part in node:
            node = cast(Any, node[part])
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(cast("list[Any]", node)):
            node = cast("list[Any]", node)[int(part)]
        else:
            raise NoKeyError(".".join(parts))
    return node


def has(tree: Tree, key: str) -> bool:
    """Whether TREE holds the dotted KEY."""
    try:
        find(tree, key.split("."))
    except NoKeyError:
        return False
    return True


def remove(tree: Tree, key: str) -> bool:
    """Take the dotted KEY out of TREE, in place. Returns whether it was there."""
    *above, last = key.split(".")
    try:
        section = find(tree, above) if above else tree
    except NoKeyError:
        return False
    if not isinstance(section, dict) or last not in section:
        return False
    del section[last]
    return True


def merge(base: Tree, over: Mapping[str, Any]) -> None:
    """Lay OVER over BASE, in place: mappings are merged, everything else is replaced."""
    for name, value in over.items():
        below, above = as_tree(base.get(name)), as_tree(value)
        if below is not None and above is not None:
            merge(below, above)
        else:
            base[name] = copied(value)


def copied(value: Any) -> Any:
    """VALUE with its mappings and lists copied."""
    if isinstance(value, dict):
        return {name: copied(inner) for name, inner in cast(Tree, value).items()}
    if isinstance(value, list):
        return [copied(inner) for inner in cast("list[Any]", value)]
    return value


_LARGEST = 1 << 63


def recordable(value: Any) -> Any:
    """VALUE with whole numbers beyond 64 bits, which no record can hold, as text."""
    if isinstance(value, dict):
        return {name: recordable(inner) for name, inner in cast(Tree, value).items()}
    if isinstance(value, list):
        return [recordable(inner) for inner in cast("list[Any]", value)]
    return str(value) if isinstance(value, int) and not -_LARGEST <= value < _LARGEST else value
