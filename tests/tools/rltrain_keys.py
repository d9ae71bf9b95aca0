"""rlcheck/data/rltrain_keys.json, from rltrain.config.

The doctor reads rltrain's configs without pydantic, so it has the schema's keys, and what is known of estimators and
engines, as data. `tests/measure/config` holds both equal.
"""

from __future__ import annotations

import typing
from typing import Any, Literal

from pydantic_core import PydanticUndefined

from rltrain.config import names
from rltrain.config.engines import ENGINES
from rltrain.config.estimators import ESTIMATORS
from tests.tools.lines import text_of

ENGINE_FIELDS = ("has_kv_cache", "resident_bytes", "sleeps")
"""What the doctor knows of an engine."""
_NAMES = {int: "int", float: "float", bool: "bool", str: "str"}


def _type(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is Literal:
        return "str"
    if origin is typing.Annotated:
        return _type(typing.get_args(kind)[0])
    return _NAMES.get(kind) or ("dict" if dict in (kind, origin) else "list")


def _choices(kind: Any) -> list[str]:
    if typing.get_origin(kind) is typing.Annotated:
        return _choices(typing.get_args(kind)[0])
    return [str(value) for value in typing.get_args(kind)] if typing.get_origin(kind) is Literal else []


def content() -> dict[str, Any]:
    """What the file holds."""
    keys: dict[str, Any] = {}
    for key, leaf in names.leaves().items():
        default = None if leaf.default is PydanticUndefined else leaf.default
        entry: dict[str, Any] = {
            "types": [_type(kind) for kind in leaf.types],
            "default": list(default) if isinstance(default, tuple) else default,
        }
        if leaf.nullable:
            entry["nullable"] = True
        if leaf.required:
            entry["required"] = True
        if choices := [choice for kind in leaf.types for choice in _choices(kind)]:
            entry["choices"] = choices
        keys[key] = entry
    estimators = {row.name: {"needs": sorted(row.needs), "scale": row.scale} for row in ESTIMATORS.values()}
    engines = {row.name: {field: getattr(row, field) for field in ENGINE_FIELDS} for row in ENGINES.values()}
    tables = {"estimators": estimators, "engines": engines}
    return {"source": "rltrain.config", "keys": keys, "sections": list(names.sections()), **tables}


def text() -> str:
    """Return the file."""
    return text_of(content())
