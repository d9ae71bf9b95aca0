"""Keys from nested models of pydantic: dotted names, `*` for items of a list; unions have the keys of all members."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Keys = dict[str, dict[str, Any]]
_PLAIN: Mapping[str, str] = {
    "int": "int", "float": "float", "bool": "bool", "str": "str", "Path": "str", "None": "None", "dict": "dict",
}  # fmt: skip
_DEEPEST = 12


class _Ref(NamedTuple):
    module: str
    name: str


@dataclass
class _Kind:
    """What an annotation allows: plain types, choices of text, models, and models in a list or under names."""

    types: set[str] = field(default_factory=set[str])
    choices: list[str] = field(default_factory=list[str])
    models: list[_Ref] = field(default_factory=list[_Ref])
    items: list[_Ref] = field(default_factory=list[_Ref])
    is_open: bool = False

    def add(self, other: _Kind) -> _Kind:
        self.types |= other.types
        self.choices += other.choices
        self.models += other.models
        self.items += other.items
        self.is_open |= other.is_open
        return self


class Models:
    """Models of the modules that READ returns by their dotted names (None: not of this package)."""

    def __init__(self, read: Callable[[str], str | None]) -> None:
        self.read = read
        self.trees: dict[str, ast.Module | None] = {}

    def keys(self, module: str, name: str, prefix: str = "", depth: int = 0) -> Keys:
        """Return the keys of the model NAME, each behind PREFIX."""
        found: Keys = {}
        owner = self._class(_Ref(module, name))
        if owner is None or depth > _DEEPEST:
            return found
        where, node = owner
        for base in node.bases:
            if isinstance(base, ast.Name) and (above := self._resolve(where, base.id)) is not None:
                found |= self.keys(above.module, above.name, prefix, depth + 1)
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and "ClassVar" not in ast.unparse(
                line.annotation):  # fmt: skip
                found |= self._field(where, f"{prefix}{line.target.id}", line, depth)
        return found

    def _field(self, module: str, key: str, node: ast.AnnAssign, depth: int) -> Keys:
        kind, default = self._kind(module, node.annotation), self._default(node.value)
        entry: dict[str, Any] = {"types": [] if kind.is_open else sorted(kind.types - {"None"}), "default": default}
        if "None" in kind.types or (default is None and not kind.types):
            entry["nullable"] = True
        if kind.choices and not kind.is_open:
            entry["choices"] = list(dict.fromkeys(kind.choices))
        if entry["types"] == ["bool"]:
            entry["many"] = "?"
        if kind.is_open:
            entry["free"] = True
        if "list" in kind.types or kind.models:
            entry["many"] = "*"
        found: Keys = {key: entry}
        made = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
        # The one that is there unless another is asked for comes last: its defaults are those of the key.
        usual = next((ref for ref in kind.models if ref.name == made), kind.models[0] if kind.models else None)
        for one in sorted(kind.models, key=lambda ref: ref == usual):
            if not entry["types"] or "dict" not in entry["types"]:
                entry["types"] = sorted({*entry["types"], "dict"})
            if self._allows(one):
                entry["free"] = True
            before = {name: row.get("choices", []) for name, row in found.items()}
            found |= self.keys(one.module, one.name, f"{key}.", depth + 1)
            for name, choices in before.items():
                if name.endswith(".type") and name != key:
                    found[name]["choices"] = list(dict.fromkeys([*choices, *found[name].get("choices", [])]))
        for one in kind.items:
            found |= self.keys(one.module, one.name, f"{key}.*.", depth + 1)
        return found

    def _default(self, node: ast.expr | None) -> Any:
        if isinstance(node, ast.Call):
            words = {word.arg: word.value for word in node.keywords}
            if ast.unparse(node.func) == "Field":
                inner = words.get("default", node.args[0] if node.args else None)
                if "default_factory" in words:
                    return [] if ast.unparse(words["default_factory"]) == "list" else {}
                return self._default(inner)
            return str(ast.literal_eval(node.args[0])) if ast.unparse(node.func) == "Path" else {}
        try:
            found = None if node is None else ast.literal_eval(node)
        except ValueError:
            return None
        return None if found is ... else found

    def _kind(self, module: str, node: ast.expr) -> _Kind:
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self._kind(module, ast.parse(node.value, mode="eval").body)
            return _Kind({"None"})
        if isinstance(node, ast.BinOp):
            return self._kind(module, node.left).add(self._kind(module, node.right))
        if isinstance(node, ast.Subscript):
            return self._subscript(module, ast.unparse(node.value).rpartition(".")[2], node.slice)
        if not isinstance(node, ast.Name):
            return _Kind(is_open=True)
        if node.id in _PLAIN:
            return _Kind({_PLAIN[node.id]})
        if (alias := self._alias(module, node.id)) is not None:
            return self._kind(*alias)
        ref = self._resolve(module, node.id)
        return _Kind(is_open=True) if ref is None or self._class(ref) is None else _Kind(models=[ref])

    def _subscript(self, module: str, outer: str, inner: ast.expr) -> _Kind:
        parts = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
        if outer == "Literal":
            values = [one.value for one in parts if isinstance(one, ast.Constant)]
            kinds = {type(one).__name__.replace("NoneType", "None") for one in values}
            return _Kind(kinds, [one for one in values if isinstance(one, str)])
        if outer in ("Annotated", "SerializeAsAny"):
            # What is put in order before it is judged may be true or false, too.
            before = _Kind({"bool"} if "BeforeValidator" in ast.unparse(inner) else set())
            return before.add(self._kind(module, parts[0]))
        if outer in ("Optional", "Union"):
            found = _Kind({"None"} if outer == "Optional" else set())
            for one in parts:
                found.add(self._kind(module, one))
            return found
        if outer == "list":
            inner_kind = self._kind(module, parts[0])
            return _Kind({"list"}, items=inner_kind.models)
        return _Kind({"dict"} if outer == "dict" else set(), is_open=True)

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self.trees:
            text = self.read(module)
            self.trees[module] = None if text is None else ast.parse(text)
        return self.trees[module]

    def _resolve(self, module: str, name: str) -> _Ref | None:
        """Where the class or the alias NAME, as MODULE calls it, is defined."""
        tree = self._tree(module)
        for node in tree.body if tree is not None else []:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return _Ref(module, name)
            if isinstance(node, ast.ImportFrom) and node.module:
                for one in node.names:
                    if (one.asname or one.name) == name and self._tree(node.module) is not None:
                        return self._resolve(node.module, one.name) or _Ref(node.module, one.name)
        return None

    def _alias(self, module: str, name: str) -> tuple[str, ast.expr] | None:
        ref = self._resolve(module, name)
        where = _Ref(module, name) if ref is None else ref
        tree = self._tree(where.module)
        for node in tree.body if tree is not None else []:
            target = node.target if isinstance(node, ast.AnnAssign) else (
                node.targets[0] if isinstance(node, ast.Assign) else None)  # fmt: skip
            if isinstance(target, ast.Name) and target.id == where.name and isinstance(
                node, ast.AnnAssign | ast.Assign) and node.value is not None:  # fmt: skip
                return where.module, node.value
        return None

    def _class(self, ref: _Ref) -> tuple[str, ast.ClassDef] | None:
        tree = self._tree(ref.module)
        for node in tree.body if tree is not None else []:
            if isinstance(node, ast.ClassDef) and node.name == ref.name:
                return ref.module, node
        return None

    def _allows(self, ref: _Ref) -> bool:
        owner = self._class(ref)
        return owner is not None and any(
            isinstance(line, ast.Assign) and re.match("model_config = .*allow", ast.unparse(line)) is not None
            for line in owner[1].body
        )  # fmt: skip
