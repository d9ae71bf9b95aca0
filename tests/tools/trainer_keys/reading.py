"""Keys from Python source: calls of `add_argument`, and fields of dataclasses (pydantic's models too)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

_NAMES = {
    **{name: name for name in ("int", "float", "bool", "str", "list", "dict")},
    "List": "list",
    "Dict": "dict",
    "tuple": "list",
    "Sequence": "list",
    "Mapping": "dict",
    "set": "list",
}


class _OpenError(Exception):
    """What only running the code would show."""


def arguments(text: str) -> dict[str, dict[str, Any]]:
    """Return the keys of every `add_argument` of a module, by the option's name; loops over literals are unrolled."""
    found: dict[str, dict[str, Any]] = {}
    for call, names in _calls(ast.parse(text).body, {}):
        options = [str(_or(one, names, "")) for one in call.args]
        options = [one.removeprefix("--") for one in options if one.startswith("--")]
        if not options:
            continue
        given = {word.arg: word.value for word in call.keywords if word.arg}
        found[options[0]] = _argument(options[0], given, names)
        for alias in options[1:]:
            found[alias] = {**found[options[0]], "sets": found[options[0]].get("sets") or options[0]}
    return found


def _calls(body: list[ast.stmt], names: Mapping[str, Any]) -> Iterator[tuple[ast.Call, Mapping[str, Any]]]:
    for node in body:
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            try:
                items: list[Any] = list(_value(node.iter, names))
            except _OpenError:
                items = []
            for item in items:
                yield from _calls(node.body, {**names, node.target.id: item})
        elif isinstance(node, ast.If | ast.FunctionDef | ast.With | ast.ClassDef):
            yield from _calls([*node.body, *getattr(node, "orelse", [])], names)
        elif isinstance(node, ast.Expr | ast.Assign):
            value = node.value
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in (
                "add_argument",):  # fmt: skip
                yield value, names


def _argument(option: str, given: Mapping[str, ast.expr], names: Mapping[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    action = _or(given.get("action"), names, "")
    if action in ("store_true", "store_false"):
        entry = {"types": ["bool"], "default": action == "store_false", "flag": True}
        if action == "store_true" and "default" in given:
            entry["default"] = _or(given["default"], names, False)
        if action == "store_false":
            entry["negates"] = True
        sets = _or(given.get("dest"), names, "")
        if sets and sets != option:
            entry["sets"] = sets
        return entry
    kind = given.get("type")
    name = ast.unparse(kind) if kind is not None else "str"
    entry["types"] = [_NAMES[name]] if name in _NAMES else []
    if "default" in given:
        default = _or(given["default"], names, None)
        entry["default"] = default
    elif not _or(given.get("required"), names, False):
        entry["default"] = None
    else:
        entry["required"] = True
    if entry.get("default") is None:
        entry["nullable"] = True
    nargs = _or(given.get("nargs"), names, None)
    if nargs is not None:
        entry["many"] = str(nargs)
    choices = _or(given.get("choices"), names, None)
    if choices:
        entry["choices"] = [str(one) for one in choices]
    return entry


def fields(text: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the fields of the dataclass NAME of a module, by their names; bases are not followed."""
    tree = ast.parse(text)
    constants = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(
        node.targets[0], ast.Name)}  # fmt: skip
    owner = next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name), None)
    found: dict[str, dict[str, Any]] = {}
    for node in owner.body if owner is not None else []:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and "ClassVar" not in ast.unparse(
            node.annotation):  # fmt: skip
            found[node.target.id] = _field(node, constants)
    return found


def _field(node: ast.AnnAssign, constants: Mapping[str, ast.expr]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    kinds, choices = _kinds(node.annotation)
    entry["types"] = sorted({kind for kind in kinds if kind and kind != "None"}) if "" not in kinds else []
    if "None" in kinds:
        entry["nullable"] = True
    given: Mapping[str, ast.expr] = {}
    default: ast.expr | None = node.value
    if isinstance(default, ast.Call) and getattr(default.func, "id", getattr(default.func, "attr", "")) in (
        "field", "Field", "HfArg"):  # fmt: skip
        given = {word.arg: word.value for word in default.keywords if word.arg}
        default = given.get("default", default.args[0] if default.args else None)
    if default is not None:
        entry["default"] = _or(default, {}, None)
    elif "default_factory" in given:
        made: dict[str, Any] = {"list": [], "dict": {}}
        entry["default"] = made.get(ast.unparse(given["default_factory"]))
    else:
        entry["required"] = True
    if entry.get("default") is None and not entry.get("required"):
        entry["nullable"] = True
    metadata = given.get("metadata")
    choices = choices or _choices(metadata, constants)
    if choices:
        entry["choices"] = choices
    if "bool" in entry["types"]:
        entry["many"] = "?"
    elif entry["types"] == ["list"]:
        entry["many"] = "+"
    return entry


def _choices(metadata: ast.expr | None, constants: Mapping[str, ast.expr]) -> list[str]:
    if not isinstance(metadata, ast.Dict):
        return []
    for key, value in zip(metadata.keys, metadata.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == "choices":
            named = constants.get(value.id, value) if isinstance(value, ast.Name) else value
            return [str(one) for one in _or(named, {}, [])]
    return []


def _kinds(node: ast.expr) -> tuple[list[str], list[str]]:
    """Types of an annotation ("" for one that is none of ours, "None"), and the choices of a Literal."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return _kinds(ast.parse(node.value, mode="eval").body)
        return ["None"], []
    if isinstance(node, ast.BinOp):
        left, right = _kinds(node.left), _kinds(node.right)
        return [*left[0], *right[0]], [*left[1], *right[1]]
    if isinstance(node, ast.Subscript):
        outer = ast.unparse(node.value).rpartition(".")[2]
        inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Literal":
            values = [one.value for one in inner if isinstance(one, ast.Constant)]
            return sorted({type(one).__name__.replace("NoneType", "None") for one in values}), [
                str(one) for one in values if isinstance(one, str)
            ]
        if outer in ("Optional", "Union", "Annotated"):
            parts = [_kinds(one) for one in (inner[:1] if outer == "Annotated" else inner)]
            kinds = [kind for part in parts for kind in part[0]] + ["None"] * (outer == "Optional")
            return kinds, [one for part in parts for one in part[1]]
        return [_NAMES.get(outer, "")], []
    name = ast.unparse(node).rpartition(".")[2]
    # An enumeration beside a text takes the texts of its members.
    return ["str" if name.endswith(("Strategy", "Option", "Names", "Type")) else _NAMES.get(name, "")], []


def _or(node: ast.expr | None, names: Mapping[str, Any], otherwise: Any) -> Any:
    if node is None:
        return otherwise
    try:
        found = _value(node, names)
    except _OpenError:
        return otherwise
    # JSON has no infinity.
    return None if isinstance(found, float) and found in (float("inf"), float("-inf")) else found


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.JoinedStr):
        parts = [one.value if isinstance(one, ast.FormattedValue) else one for one in node.values]
        return "".join(str(_value(one, names)) for one in parts)
    if isinstance(node, ast.Tuple | ast.List):
        return [_value(one, names) for one in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names)
    if isinstance(node, ast.IfExp) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Eq):
        same = _value(node.test.left, names) == _value(node.test.comparators[0], names)
        return _value(node.body if same else node.orelse, names)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _value(node.left, names) * _value(node.right, names)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("int", "float") and node.args:
        return (int if ast.unparse(node.func) == "int" else float)(_value(node.args[0], names))
    raise _OpenError
