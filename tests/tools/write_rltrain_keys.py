"""Write rlcheck/data/rltrain_keys.json from trainer.config.schema: `python -m tests.tools.write_rltrain_keys`.

The doctor reads rltrain's configs without pydantic, so it has the schema's keys as data. `tests/runs` holds both equal.
"""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any, Literal

from pydantic_core import PydanticUndefined

from trainer.config import names

TARGET = Path(__file__).resolve().parents[2] / "rlcheck" / "data" / "rltrain_keys.json"
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
    return {"source": "trainer.config.schema", "keys": keys, "sections": list(names.sections())}


def main() -> None:
    """Write it."""
    TARGET.write_text(json.dumps(content(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
