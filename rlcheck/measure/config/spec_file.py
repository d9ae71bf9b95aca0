"""A plain file of `RunSpec` fields."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, cast, get_args

import msgspec

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config, shown
from rlcheck.measure.config.document import Document
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.overrides import read_overrides
from rlcheck.measure.config.trees import Tree, copied, flatten, put, remove

_FIELDS = frozenset(field.name for field in msgspec.structs.fields(RunSpec))
# Names of sections that frameworks have as well: alone they decide nothing.
_SHARED = frozenset(("critic", "data", "algorithm", "reward", "reward_model"))
_ROLES = ("actor", "ref", "critic", "reward_model")


def is_spec(document: Document) -> bool:
    """Whether the document's top level are fields of `RunSpec`."""
    names = set(document.tree)
    return bool(names) and names <= _FIELDS and bool(names - _SHARED)


def read_spec(source: str, document: Document, words: Sequence[str]) -> tuple[Config, RunSpec]:
    """The spec in DOCUMENT with the overrides WORDS.

    Raises:
        ReadError: a value does not fit its field.
    """
    config = Config("spec", source, problems=list(document.problems), given=dict(document.places))
    tree: Tree = copied(document.tree)
    overrides, problems = read_overrides(words, hydra=False)
    config.problems += problems
    for override in overrides:
        if override.sign == "~":
            remove(tree, override.key)
            config.given.pop(override.key, None)
        else:
            put(tree, override.key.split("."), override.value)
            config.given[override.key] = override.place
    for role in _ROLES:
        if isinstance(tree.get(role), dict):
            tree[role] = {"name": role, **tree[role]}
    _refuse_unknown(config, tree)
    try:
        spec = msgspec.convert(tree, RunSpec, strict=False)
    except msgspec.ValidationError as error:
        raise ReadError(f"{source}: {_said(str(error))}") from None
    config.values = dict(flatten(_whole(spec)))
    return config, spec


def _whole(value: Any) -> Any:
    """A struct as nested mappings, defaults included."""
    if isinstance(value, msgspec.Struct):
        return {name: _whole(getattr(value, name)) for name in value.__struct_fields__}
    return [_whole(item) for item in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value


def _refuse_unknown(config: Config, tree: Tree) -> None:
    """Fields that RunSpec does not have: msgspec would pass over them."""
    for key, value in flatten(tree):
        section, _, last = key.rpartition(".")
        fields = _beside(key)
        if fields and last not in fields:
            near = difflib.get_close_matches(last, fields, n=1, cutoff=0.6)
            instead = tuple(f"{section}.{name}".lstrip(".") for name in near)
            config.problem("unknown", key, "is no field of RunSpec", instead=instead, value=shown(value))


def _beside(key: str) -> list[str]:
    """The fields of the struct that KEY names one of; none where it is in a mapping of the user's own."""
    struct: Any = RunSpec
    for part in key.split(".")[:-1]:
        types = msgspec.structs.fields(struct)
        found = next((field.type for field in types if field.name == part), None)
        inner = [
            kind for kind in (found, *get_args(found)) if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        ]
        if not inner:
            return [] if found is not None else [field.name for field in types]
        struct = inner[0]
    return [field.name for field in msgspec.structs.fields(struct)]


def _said(text: str) -> str:
    return text.replace(" - at `$.", "; at `").replace(" - at `$`", "")
