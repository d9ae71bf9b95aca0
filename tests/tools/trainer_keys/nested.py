"""Dotted keys of classes that hold classes: dataclasses, TypedDicts and pydantic's models of several files."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any, cast

from tests.tools.trainer_keys.reading import fields

Entries = dict[str, dict[str, Any]]
_DEEPEST = 8
_WRAPPERS = ("NotRequired", "Required", "Annotated")
_LISTS = ("list", "List", "Sequence", "tuple", "Tuple", "dict", "Dict", "Mapping")
_SCALARS = ("int", "float", "bool", "str")


class Classes:
    """Classes by name; of two of one name, that of the earlier file."""

    def __init__(self, texts: Iterable[str], *, open_kinds: Iterable[str] = ()) -> None:
        """Read the sources TEXTS. `open_kinds`: scalars that a key of type str takes as well, as OmegaConf lets it."""
        self._nodes: dict[str, ast.ClassDef] = {}
        self._texts: dict[str, str] = {}
        self._enums: dict[str, list[str]] = {}
        self._open = sorted({"str", *open_kinds})
        self._fields: dict[str, Entries] = {}
        for text in texts:
            tree = _Unwrap().visit(ast.parse(text))
            plain = ast.unparse(tree)
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name not in self._nodes:
                    self._nodes[node.name] = node
                    self._texts[node.name] = plain
                    if any("Enum" in ast.unparse(base) for base in node.bases):
                        self._enums[node.name] = [str(one.value.value) for one in node.body if isinstance(
                            one, ast.Assign) and isinstance(one.value, ast.Constant)]  # fmt: skip

    def has(self, name: str) -> bool:
        """Return whether there is a class NAME."""
        return name in self._nodes

    def keys(self, name: str, prefix: str = "", above: tuple[str, ...] = ()) -> Entries:
        """Return the keys of the class NAME, its bases' first; a class below one is a section with keys of its own."""
        found: Entries = {}
        for owner in self._line(name):
            annotations = {node.target.id: node.annotation for node in self._nodes[owner].body if isinstance(
                node, ast.AnnAssign) and isinstance(node.target, ast.Name)}  # fmt: skip
            if owner not in self._fields:
                self._fields[owner] = fields(self._texts[owner], owner)
            for field, entry in self._fields[owner].items():
                found |= self._one(f"{prefix}{field}", annotations[field], entry, (*above, name))
        return found

    def _line(self, name: str) -> list[str]:
        """NAME behind those of its bases that are known."""
        bases = [ast.unparse(base).rpartition(".")[2] for base in self._nodes[name].bases]
        return [*(one for base in bases if base in self._nodes for one in self._line(base)), name]

    def _one(self, key: str, annotation: ast.expr, entry: Mapping[str, Any], above: tuple[str, ...]) -> Entries:
        # What must be there depends on the section, and on which of several classes it is.
        entry = {name: value for name, value in entry.items() if name not in ("required", "many")}
        inner = [one for one in self._inside(annotation) if one not in above and len(above) < _DEEPEST]
        enums = [one for one in inner if one in self._enums]
        if enums:
            entry["types"], entry["choices"] = ["str"], [value for one in enums for value in self._enums[one]]
            return {key: entry}
        if not inner:
            return {key: self._opened(entry)}
        others = {one for one in entry["types"] if one in _SCALARS}
        section = {"types": sorted({"dict", *others, *(["list"] if self._has_list(annotation) else [])}),
                   "section": True, "nullable": True}  # fmt: skip
        found: Entries = {key: section}
        for one in inner:
            for name, value in self.keys(one, f"{key}.", above).items():
                found[name] = _both(found[name], value) if name in found else value
        return found

    def _opened(self, entry: dict[str, Any]) -> dict[str, Any]:
        if entry["types"] == ["str"] and "choices" not in entry:
            return {**entry, "types": self._open}
        if entry["types"] == ["list"]:
            return {**entry, "many": "+"}
        return entry

    def _inside(self, node: ast.expr) -> list[str]:
        """Classes that the annotation NODE lets the key be; those inside of a list or of a mapping are not."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self._inside(ast.parse(node.value, mode="eval").body)
        if isinstance(node, ast.BinOp):
            return [*self._inside(node.left), *self._inside(node.right)]
        if isinstance(node, ast.Subscript):
            if ast.unparse(node.value).rpartition(".")[2] in ("Optional", "Union"):
                parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                return [one for part in parts for one in self._inside(part)]
            return []
        name = ast.unparse(node).rpartition(".")[2]
        return [name] if name in self._nodes else []

    def _has_list(self, node: ast.expr) -> bool:
        return any(isinstance(one, ast.Name) and one.id in _LISTS for one in ast.walk(node))


class _Unwrap(ast.NodeTransformer):
    """`NotRequired[X]` and the like become X."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if ast.unparse(node.value).rpartition(".")[2] not in _WRAPPERS:
            return node
        return node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A key that two classes have, such as `enabled: Literal[True]` beside `Literal[False]`."""
    types = sorted({*one["types"], *other["types"]}) if one["types"] and other["types"] else []
    found = {**one, "types": types}
    if one.get("nullable") or other.get("nullable"):
        found["nullable"] = True
    choices = [*one.get("choices", []), *other.get("choices", [])]
    found.pop("choices", None)
    return {**found, "choices": sorted(set(choices))} if one.get("choices") and other.get("choices") else found


def missing(keys: Entries, tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys of TREE that KEYS do not have."""
    found: list[str] = []
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key not in keys:
            found.append(key)
        elif isinstance(value, dict) and keys[key].get("section"):
            found += missing(keys, cast("dict[str, Any]", value), f"{key}.")
    return found
