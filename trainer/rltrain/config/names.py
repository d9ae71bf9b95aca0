"""The names of config keys: which there are, where verl's moved to, and which one a misspelt key meant.

There are two vocabularies: that of a run (`rltrain run`), whose tables are functions of this module, and that of
supervised training (`rltrain sft`), whose files are `sft_aliases.json` and `verl_sft_keys.json` beside this one.

The doctor reads such configs too: what it says of a name is said here in the same words.
`rlcheck/data/verl_keys.json` holds verl's keys and defaults, flattened from the generated config in its wheel.
`aliases.json` holds what differs: `moved` (old to new), `instead` (what to do about a key that is not there) and
`accepted` (values, besides verl's default, that say what rltrain does anyway).
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Union, cast

import msgspec
from pydantic import BaseModel

import rlcheck
from rlcheck.measure.config.rltrain_data import Aliases, aliases, leaf_above
from rlcheck.measure.config.rltrain_keys import nearest
from rltrain.config.schema import RunConfig
from rltrain.config.schema.sft import SftConfig
from rltrain.recipes import RECIPES, SFT_RECIPES

__all__ = [
    "RUN", "SFT", "Leaf", "Vocabulary", "aliases", "leaf_above", "leaves", "nearest", "sections", "verl_keys",
    "words_of",
]  # fmt: skip


@dataclass(frozen=True)
class Leaf:
    """A key that takes a value: a scalar, a list, or a mapping of the user's own."""

    types: tuple[Any, ...]
    """The alternatives of its annotation, `None` left out."""
    nullable: bool
    required: bool
    default: Any


@dataclass(frozen=True)
class Vocabulary:
    """The keys of one kind of config, and what of verl's stands for them. The tables are read when first asked for."""

    command: str
    """`rltrain COMMAND` takes such configs."""
    schema: type[BaseModel]
    recipes: Path

    def leaves(self) -> Mapping[str, Leaf]:
        """Every dotted key that takes a value, in the order of the schema."""
        return _leaves(self.schema)

    def sections(self) -> Mapping[str, type[BaseModel]]:
        """Every dotted key that is a section."""
        return _sections(self.schema)

    def leaf_above(self, key: str) -> str | None:
        """KEY or the key above it that takes a value (`toy.model` for `toy.model.hidden_size`); None if none does."""
        parts = key.split(".")
        prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((prefix for prefix in prefixes if prefix in self.leaves()), None)

    def nearest(self, key: str) -> list[str]:
        """The keys that KEY probably was meant to be, at most two, best first."""
        return nearest(key, (*self.leaves(), *self.sections()))

    def verl_keys(self) -> Mapping[str, Any]:
        """Verl's dotted keys, with their defaults."""
        return verl_keys() if self.schema is RunConfig else _beside("verl_sft_keys.json")["keys"]

    def aliases(self) -> Aliases:
        """Verl's names for settings that are called otherwise here, and advice on what is not here."""
        return aliases() if self.schema is RunConfig else msgspec.convert(_beside("sft_aliases.json"), Aliases)


RUN = Vocabulary("run", RunConfig, RECIPES)
SFT = Vocabulary("sft", SftConfig, SFT_RECIPES)


@cache
def _beside(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


@cache
def _leaves(schema: type[BaseModel]) -> Mapping[str, Leaf]:
    return {key: leaf for key, leaf, _ in _walk(schema, "") if leaf is not None}


@cache
def _sections(schema: type[BaseModel]) -> Mapping[str, type[BaseModel]]:
    return {key: section for key, _, section in _walk(schema, "") if section is not None}


@lru_cache(maxsize=1)
def verl_keys() -> Mapping[str, Any]:
    """Verl's dotted keys, with their defaults (some of which are interpolations)."""
    return json.loads((Path(rlcheck.__file__).parent / "data" / "verl_keys.json").read_text(encoding="utf-8"))["keys"]


def leaves() -> Mapping[str, Leaf]:
    """Every dotted key of a run's config that takes a value, in the order of the schema."""
    return RUN.leaves()


def sections() -> Mapping[str, type[BaseModel]]:
    """Every dotted key of a run's config that is a section."""
    return RUN.sections()


@cache
def words_of(section: type[BaseModel]) -> Mapping[str, str]:
    """What the source says of the fields of SECTION: the text behind each, those of its bases with them.

    pydantic would parse the source of every section whenever a config is read; only `rltrain init` shows these.
    """
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            body = cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]).body
            for field, behind in pairwise(body):
                match field, behind:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = inspect.cleandoc(text)
                    case _:
                        pass
    return found


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
            yield key, Leaf(alternatives, nullable, field.is_required(), field.default), None


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
