"""The names of config keys: which there are, where verl's moved to, and which one a misspelt key meant.

`rlcheck/data/verl_keys.json` holds verl's keys and defaults, flattened from the generated config in its wheel.
`aliases.json` holds what differs: `moved` (old to new), `instead` (what to do about a key that is not there) and
`accepted` (values, besides verl's default, that say what rltrain does anyway).
"""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Union

from pydantic import BaseModel

import rlcheck
from trainer.config.schema import RunConfig

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Leaf:
    """A key that takes a value: a scalar, a list, or a mapping of the user's own."""

    types: tuple[Any, ...]
    """The alternatives of its annotation, `None` left out."""
    nullable: bool
    required: bool
    default: Any
    description: str


@dataclass(frozen=True)
class Aliases:
    """What `aliases.json` holds."""

    moved: Mapping[str, str]
    instead: Mapping[str, str]
    accepted: Mapping[str, list[Any]]

    def target(self, key: str) -> str | None:
        """Where KEY, or a section above it, has moved to; None if it has not."""
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            new = self.moved.get(".".join(parts[:length]))
            if new is not None:
                return ".".join([new, *parts[length:]])
        return None


@lru_cache(maxsize=1)
def aliases() -> Aliases:
    """The aliases."""
    return Aliases(**json.loads((_HERE / "aliases.json").read_text(encoding="utf-8")))


@lru_cache(maxsize=1)
def verl_keys() -> Mapping[str, Any]:
    """Verl's dotted keys, with their defaults (some of which are interpolations)."""
    return json.loads((Path(rlcheck.__file__).parent / "data" / "verl_keys.json").read_text(encoding="utf-8"))["keys"]


@lru_cache(maxsize=1)
def leaves() -> Mapping[str, Leaf]:
    """Every dotted key that takes a value, in the order of the schema."""
    return {key: leaf for key, leaf, _ in _walk(RunConfig, "") if leaf is not None}


@lru_cache(maxsize=1)
def sections() -> Mapping[str, type[BaseModel]]:
    """Every dotted key that is a section."""
    return {key: section for key, _, section in _walk(RunConfig, "") if section is not None}


def leaf_above(key: str) -> str | None:
    """KEY or the key above it that takes a value (`toy.model` for `toy.model.hidden_size`); None if none does."""
    parts = key.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in leaves()), None)


def nearest(key: str) -> list[str]:
    """The keys that KEY probably was meant to be, at most two, best first."""
    known = [*leaves(), *sections()]
    shortened = [name for name in known if name.endswith(f".{key}")]
    last = key.rsplit(".", 1)[-1]
    elsewhere = [name for name in known if name.rsplit(".", 1)[-1] == last]
    close = [
        name
        for name in difflib.get_close_matches(key, known, n=10, cutoff=0.6)
        # Long common prefixes make everything in a section alike, so the last word has to be near as well.
        if _likeness(last, name.rsplit(".", 1)[-1]) >= 0.7
    ]
    found = shortened or elsewhere or close[:1]
    if len(found) > 2:
        found = sorted(found, key=lambda name: _likeness(key, name), reverse=True)[:1]
    return found


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _walk(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, Leaf | None, type[BaseModel] | None]]:
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        alternatives = _alternatives(field.annotation)
        inner = alternatives[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield key, None, inner
            yield from _walk(inner, f"{key}.")
        else:
            nullable = type(None) in _alternatives(field.annotation, keep_none=True)
            yield key, Leaf(alternatives, nullable, field.is_required(), field.default, field.description or ""), None


def _alternatives(annotation: Any, keep_none: bool = False) -> tuple[Any, ...]:
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _alternatives(typing.get_args(annotation)[0], keep_none)
    if origin in (Union, types.UnionType):
        found: list[Any] = []
        for part in typing.get_args(annotation):
            found.extend(_alternatives(part, keep_none=True))
    else:
        found = [annotation]
    return tuple(part for part in found if keep_none or part is not type(None))
