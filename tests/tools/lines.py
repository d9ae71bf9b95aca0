"""JSON with one entry a line: what fits on a line stays on it."""

from __future__ import annotations

import json
from typing import Any

_WIDEST = 240


def text_of(tree: Any) -> str:
    """Return TREE as the text of a file."""
    return _written(tree, "") + "\n"


def _written(tree: Any, indent: str) -> str:
    line = json.dumps(tree, ensure_ascii=False)
    if not isinstance(tree, dict | list) or not tree or (indent and len(indent) + len(line) <= _WIDEST):
        return line
    inner = indent + " "
    if isinstance(tree, list):
        return "[\n" + ",\n".join(inner + _written(item, inner) for item in tree) + f"\n{indent}]"
    entries = (f"{inner}{json.dumps(key, ensure_ascii=False)}: {_written(value, inner)}" for key, value in tree.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
