"""Where the import system would find a module, read from directory listings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES, FrozenImporter
from typing import NamedTuple

from .files import Listings


class Place(NamedTuple):
    """One directory of `sys.path` that provides a module. `is_regular` is False for a part of a namespace package."""

    directory: str
    path: str
    is_regular: bool


def providers(name: str, sys_path: Iterable[str], listings: Listings) -> list[Place]:
    """Every place that provides module `name`, in the order of `sys.path`."""
    found = []
    for directory in sys_path:
        place = _in(directory, name, listings)
        if place is not None:
            found.append(place)
    return found


def _in(directory: str, name: str, listings: Listings) -> Place | None:
    path = f"{directory}/{name}"
    is_directory = listings.has(directory, name) and os.path.isdir(path)
    if is_directory and os.path.exists(f"{path}/__init__.py"):
        return Place(directory, path, True)
    for suffix in (*EXTENSION_SUFFIXES, ".py"):
        if listings.has(directory, name + suffix):
            return Place(directory, path + suffix, True)
    return Place(directory, path, False) if is_directory else None


def winner(places: list[Place]) -> Place | None:
    """The place that `import` takes: the first regular one; parts of a namespace only when there is none."""
    return next((place for place in places if place.is_regular), places[0] if places else None)


def shadowed(
    own: dict[str, list[tuple[str, str]]], sys_path: Iterable[str], listings: Listings
) -> dict[str, tuple[str, ...]]:
    """The modules that are not imported from their own distribution, with every place that provides them.

    Args:
        own: of each module the (location, editable directory or "") of the distributions that install it; a module
            in a namespace package is given with its dots.
        sys_path: the search path.
        listings: of its directories.
    """
    result = {}
    for name, homes in own.items():
        places = _deepest_providers(name, sys_path, listings)
        first = winner(places)
        if first is not None and not any(_belongs(first, location, editable) for location, editable in homes):
            relevant = [place for place in places if place.is_regular] or places
            result[name] = tuple(place.path for place in relevant)
    return result


def is_copy(found: tuple[str, ...]) -> bool:
    """Whether the first place has most of what the second has: the package again (a checkout), and no stranger."""
    if len(found) < 2:
        return False
    first, second = (set(_names(path)) for path in found[:2])
    return bool(second) and 2 * len(first & second) >= len(second)


def _names(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if not name.startswith((".", "__pycache__"))]
    except OSError:
        return []


def hidden_stdlib(directory: str, listings: Listings) -> dict[str, str]:
    """The modules of the standard library that a file or package in `directory` is imported instead of."""
    found = {}
    standard = frozenset(getattr(sys, "stdlib_module_names", ())) - frozenset(sys.builtin_module_names)
    for entry in listings.names(directory):
        name = entry.partition(".")[0]
        if name in standard and name not in found and FrozenImporter.find_spec(name) is None:
            place = _in(directory, name, listings)
            if place is not None and place.is_regular:
                found[name] = place.path
    return found


def _deepest_providers(name: str, sys_path: Iterable[str], listings: Listings) -> list[Place]:
    """The places of `name`; of `a.b` those of `a` when that is a regular package, else what its parts have of `b`."""
    top, _, rest = name.partition(".")
    places = providers(top, sys_path, listings)
    if not rest or any(place.is_regular for place in places):
        return places
    inner = [(place.directory, _in(place.path, rest, listings)) for place in places]
    return [found._replace(directory=directory) for directory, found in inner if found is not None]


def _belongs(place: Place, location: str, editable: str) -> bool:
    if not editable:
        return place.directory == location or os.path.realpath(place.directory) == os.path.realpath(location)
    source = os.path.realpath(editable)
    return os.path.realpath(place.path).startswith(source.rstrip("/") + "/")
