"""Columns and the kinds of their values, nested ones by dotted path (`reward_model.ground_truth`, `prompt[].role`)."""

from __future__ import annotations

from typing import Any

KINDS = {str: "text", bool: "boolean", int: "integer", float: "number", type(None): "null"}
MAX_DEPTH = 4
MAX_PATHS = 400
"""Further paths are counted together: objects whose keys are data have no end of them."""
_MAX_SIGNS = 2000
_MAX_KEY_SETS = 100
_INFINITE = (float("inf"), float("-inf"))


def sign(value: Any, depth: int = 0) -> Any:
    """The form of VALUE, hashable: a kind, ("[", forms of the elements), or ("{", names and forms)."""
    kind = type(value)
    if kind is dict:
        if depth == MAX_DEPTH:
            return "object"
        return ("{", *[(name, sign(part, depth + 1)) for name, part in value.items()])
    if kind is list:
        if depth == MAX_DEPTH:
            return "list"
        return ("[", *dict.fromkeys([sign(part, depth + 1) for part in value]))
    if kind is float and (value != value or value in _INFINITE):
        return "not finite"
    return KINDS.get(kind) or kind.__name__


def has_infinite(form: Any) -> bool:
    """Whether a number in FORM is NaN or infinite."""
    if isinstance(form, str):
        return form == "not finite"
    return any(has_infinite(part[1] if form[0] == "{" else part) for part in form[1:])


class Shapes:
    """Counts of forms; most data sets have a handful."""

    def __init__(self) -> None:
        self._signs: dict = {}
        self._paths: dict = {}
        self.keys: dict = {}
        """Names of the columns of a row, together, to the first line with these."""

    def add(self, values: dict, line: int) -> bool:
        """Count one row. Returns whether a number in it is NaN or infinite."""
        form = sign(values)
        entry = self._signs.get(form)
        if entry is not None:
            entry[0] += 1
            return entry[2]
        if len(self._signs) >= _MAX_SIGNS:
            self._expand()
        infinite = has_infinite(form)
        self._signs[form] = [1, line, infinite]
        return infinite

    def told(self) -> dict:
        """Path to kind to [rows or values, first line]."""
        self._expand()
        return self._paths

    def _expand(self) -> None:
        for form, (count, line, _) in self._signs.items():
            names = tuple(sorted([name for name, _ in form[1:]]))
            if names in self.keys or len(self.keys) < _MAX_KEY_SETS:
                self.keys[names] = min(line, self.keys.get(names, line))
            for name, part in form[1:]:
                self._put(name, part, count, line)
        self._signs = {}

    def _put(self, path: str, form: Any, count: int, line: int) -> None:
        path = path[:120].encode("utf-8", "backslashreplace").decode()
        if path not in self._paths and len(self._paths) >= MAX_PATHS:
            path = "…"
        kind = form if isinstance(form, str) else "object" if form[0] == "{" else "list"
        entry = self._paths.setdefault(path, {}).setdefault(kind, [0, line])
        entry[0] += count
        entry[1] = min(entry[1], line)
        if isinstance(form, str):
            return
        for part in form[1:]:
            if form[0] == "{":
                self._put(f"{path}.{part[0]}", part[1], count, line)
            else:
                self._put(f"{path}[]", part, count, line)
