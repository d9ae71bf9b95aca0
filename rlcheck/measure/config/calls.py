"""Settings in a Python file: keyword arguments of calls such as `GRPOConfig(…)`, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlcheck.facts.config import Place
from rlcheck.measure.config.errors import ReadError

_MOST_CALLS = 10_000


@dataclass
class Calls:
    """What the calls of a file say.

    `values` by key; `open_keys`: those whose values only running the program shows, as written; `kinds`: the names of
    the calls that were found; `parsers`: classes that the program lets an argument parser fill.
    """

    values: dict[str, Any] = field(default_factory=dict[str, Any])
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    open_keys: dict[str, str] = field(default_factory=dict[str, str])
    kinds: list[str] = field(default_factory=list[str])
    parsers: list[str] = field(default_factory=list[str])
    num_configs: int = 0
    is_spread: bool = False
    """Whether a call takes `**more`, `*more` or, as pages write it, `...`: there may be other keys."""


class _OpenError(Exception):
    """A value that only the program knows."""


def calls_in(name: str, text: str, wanted: Mapping[str, Mapping[str, str] | None]) -> Calls:
    """What the calls WANTED (see `Trainer.calls`) in the Python source TEXT say; the last call of a kind counts.

    Raises:
        ReadError: it is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ReadError(
            f"{name}{where}: not Python: {getattr(error, 'msg', error)}; give a config or a script"
        ) from None
    found, known = Calls(), _assigned(tree)
    for number, node in enumerate(node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if number > _MOST_CALLS:
            break
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in wanted:
            _take(found, name, node, called, wanted[called], known)
        elif called.endswith("ArgumentParser") or called == "TrlParser":
            names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
            found.parsers += [inner.id for inner in names if inner.id in wanted]
    return found


def _take(
    found: Calls, file: str, node: ast.Call, called: str, renamed: Mapping[str, str] | None, known: Mapping[str, Any]
) -> None:
    found.kinds.append(called)
    found.num_configs += renamed is None
    found.is_spread |= any(isinstance(one, ast.Starred) or ast.unparse(one) == "..." for one in node.args)
    for keyword in node.keywords:
        if keyword.arg is None:
            found.is_spread = True
            continue
        key = keyword.arg if renamed is None else renamed.get(keyword.arg, "")
        if not key:
            continue
        found.places[key] = Place(file=file, line=keyword.lineno, column=keyword.col_offset + 1)
        found.open_keys.pop(key, None)
        found.values.pop(key, None)
        try:
            found.values[key] = _value(keyword.value, known)
        except _OpenError:
            found.open_keys[key] = ast.unparse(keyword.value)[:80]


def _assigned(tree: ast.Module) -> dict[str, Any]:
    """Names that the file sets once, to something that is known."""
    found: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for node in ast.walk(tree):
        names = {target.id for target in _targets(node) if isinstance(target, ast.Name)}
        for name in names:
            counts[name] = counts.get(name, 0) + 1
            try:
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                if value is None:
                    raise _OpenError
                found[name] = _value(value, found)
            except _OpenError:
                counts[name] += 1
    return {name: value for name, value in found.items() if counts[name] == 1}


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.NamedExpr):
        return [node.target]
    return []


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        return node.attr
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, known) for item in node.elts]
    if isinstance(node, ast.Dict):
        if any(key is None for key in node.keys):
            raise _OpenError
        pairs = zip(node.keys, node.values, strict=True)
        return {str(_value(key, known)): _value(value, known) for key, value in pairs if key is not None}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, known)
        if isinstance(inner, int | float):
            return -inner
    if isinstance(node, ast.BinOp):
        return _sum(node, known)
    raise _OpenError


def _sum(node: ast.BinOp, known: Mapping[str, Any]) -> int | float:
    left, right = _value(node.left, known), _value(node.right, known)
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise _OpenError
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Div | ast.FloorDiv) and right:
        return left / right if isinstance(node.op, ast.Div) else left // right
    raise _OpenError
