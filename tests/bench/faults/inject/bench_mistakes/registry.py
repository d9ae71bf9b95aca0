"""The table of mistakes: name to the modules that it changes and the functions that change them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

Patch = Callable[..., None]
"""Given the module that has just been imported, and the mistake's arguments."""
MISTAKES: dict[str, list[tuple[str, Patch]]] = defaultdict(list)


def mistake(module: str, part_of: str = "") -> Callable[[Patch], Patch]:
    """The decorated function is a mistake in MODULE, under its own name or as PART_OF one that needs two places."""

    def register(patch: Patch) -> Patch:
        MISTAKES[part_of or patch.__name__].append((module, patch))
        return patch

    return register


class Counter:
    """Counts calls, from 1: a step of the trainer is one call of each of its stages."""

    def __init__(self) -> None:
        self.value = 0

    def __call__(self) -> int:
        self.value += 1
        return self.value


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace OWNER.NAME by AROUND, which is given the real one first."""
    real = getattr(owner, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return around(real, *args, **kwargs)

    replaced.__name__, replaced.__qualname__ = real.__name__, real.__qualname__
    setattr(owner, name, replaced)
