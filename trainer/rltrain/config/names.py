"""The names of config keys: which there are, where verl's moved to, and which one a misspelt key meant.

The doctor reads such configs too: what it says of a name is said here in the same words.
`rlcheck/data/verl_keys.json` holds verl's keys and defaults, flattened from the generated config in its wheel.
`aliases.json` holds what differs: `moved` (old to new), `instead` (what to do about a key that is not there) and
`accepted` (values, besides verl's default, that say what rltrain does anyway).
"""

from __future__ import annotations

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
from rlcheck.measure.config.rltrain_data import aliases, leaf_above
from rlcheck.measure.config.rltrain_keys import nearest
from rltrain.config.schema import RunConfig

__all__ = ["Leaf", "aliases", "leaf_above", "leaves", "nearest", "sections", "verl_keys"]


@dataclass(frozen=True)
class Leaf:
    """A key that takes a value: a scalar, a list, or a mapping of the user's own."""

    types: tuple[Any, ...]
    """The alternatives of its annotation, `None` left out."""
    nullable: bool
    required: bool
    default: Any
    description: str


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
