"""rltrain's keys, from `rlcheck/data/rltrain_keys.json`, and what the installed trainer package holds as files.

The trainer is not imported: the doctor runs where its dependencies are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

_HERE = Path(__file__).resolve()
_DATA = _HERE.parents[1] / "data" / "rltrain_keys.json"
# Both packages come in one wheel.
TRAINER = _HERE.parents[2] / "trainer"


class Key(msgspec.Struct, frozen=True):
    """A key that takes a value. `types`: int, float, bool, str, list, dict."""

    types: tuple[str, ...]
    default: Any = None
    nullable: bool = False
    required: bool = False
    choices: tuple[str, ...] = ()


class _Keys(msgspec.Struct, frozen=True):
    keys: dict[str, Key]
    sections: frozenset[str]


class Aliases(msgspec.Struct, frozen=True):
    """verl's names for rltrain's settings: `moved` (old to new), `instead` (advice), `accepted` (values that pass)."""

    moved: dict[str, str] = {}
    instead: dict[str, str] = {}
    accepted: dict[str, list[Any]] = {}

    def target(self, key: str) -> str | None:
        """Where KEY, or a section above it, has moved to; None if it has not."""
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            new = self.moved.get(".".join(parts[:length]))
            if new is not None:
                return ".".join([new, *parts[length:]])
        return None


@lru_cache(maxsize=1)
def _keys() -> _Keys:
    return msgspec.json.decode(_DATA.read_bytes(), type=_Keys)


def keys() -> Mapping[str, Key]:
    """Every dotted key that takes a value."""
    return _keys().keys


def sections() -> frozenset[str]:
    """Every dotted key that is a section."""
    return _keys().sections


@lru_cache(maxsize=1)
def aliases() -> Aliases:
    """The aliases of the installed trainer; none where it is not installed."""
    path = TRAINER / "config" / "aliases.json"
    return msgspec.json.decode(path.read_bytes(), type=Aliases) if path.is_file() else Aliases()


def leaf_above(key: str) -> str | None:
    """KEY or the key above it that takes a value (`toy.model` for `toy.model.hidden_size`); None if none does."""
    parts = key.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in keys()), None)


def recipe_names() -> list[str]:
    """The recipes that come with rltrain."""
    return sorted(path.stem for path in (TRAINER / "recipes").glob("*.yaml"))
