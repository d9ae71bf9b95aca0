"""Under which conditions a statement is reached, as source text, and which settings these and its message name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import compress, pairwise, takewhile

import msgspec

from rlcheck.diagnose.model import Setting, SettingKind
from rlcheck.diagnose.source.sites import Function, Source, Spot, arguments

_LONGEST = 160
_LONGEST_VALUE = 80
_MOST_EXITS = 3
_CONFIG = re.compile(r"(?i).*(?:config|cfg|conf|args|kwargs|options|opts|params|settings|hparams)\d*$")
_LEAVES = ast.Return | ast.Raise | ast.Continue | ast.Break
_DEEPEST = 3


def conditions(spot: Spot) -> tuple[str, ...]:
    """What holds where SPOT is reached, from its function inwards, the innermost last."""
    start = max((at for at, (node, _) in enumerate(spot.around) if isinstance(node, Function)), default=-1)
    inside = spot.around[start + 1 :]
    found = [text for node, block in inside for text in _condition(node, block)]
    if not found and spot.around:
        found = [f"not ({ast.unparse(one.test)})" for one in _exits(spot)]
    if isinstance(spot.node, ast.Assert):
        found.append(f"not ({ast.unparse(spot.node.test)})")
    return tuple(map(shortened, dict.fromkeys(found)))


def _condition(node: ast.AST, block: str) -> Iterator[str]:
    if isinstance(node, ast.If | ast.While) and block in ("body", "orelse"):
        test = ast.unparse(node.test)
        yield test if block == "body" else f"not ({test})"
    elif isinstance(node, ast.For | ast.AsyncFor):
        to_the_end = "" if block == "body" else ", to its end"
        yield f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}{to_the_end}"
    elif isinstance(node, ast.ExceptHandler):
        yield f"except {ast.unparse(node.type)}" if node.type else "except"
    elif isinstance(node, ast.match_case):
        guard = f" if {ast.unparse(node.guard)}" if node.guard else ""
        yield f"case {ast.unparse(node.pattern)}{guard}"


def _exits(spot: Spot) -> list[ast.If]:
    """What is above SPOT in its block and ends the function before it if its test holds; what raises comes first."""
    parent, name = spot.around[-1]
    above = takewhile(lambda one: one is not spot.node, getattr(parent, name))
    found = [one for one in above if isinstance(one, ast.If) and isinstance(one.body[-1], _LEAVES) and not one.orelse]
    return sorted(found[-_MOST_EXITS:], key=lambda one: not _raises(one))


def _raises(node: ast.If) -> bool:
    return isinstance(node.body[-1], ast.Raise)


def way_out(spot: Spot) -> str:
    """What keeps a run from SPOT, in words; "" where that is more than a test, or another error."""
    if isinstance(spot.node, ast.Assert):
        return f"`{shortened(ast.unparse(spot.node.test))}` is true"
    chain: list[ast.If] = []
    for node, block in reversed(spot.around):
        if isinstance(node, Function | ast.ClassDef | ast.Module):
            break
        if isinstance(node, ast.If) and block == "orelse" and (not chain or node.orelse == [chain[-1]]):
            chain.append(node)
        elif chain:
            break
        elif isinstance(node, ast.If | ast.While) and block == "body":
            return f"`{shortened(ast.unparse(node.test))}` is no longer true"
        elif not isinstance(node, ast.With | ast.AsyncWith | ast.Try) or block != "body":
            return ""
    tests = [ast.unparse(one.test) for one in (chain[::-1] or _exits(spot)) if not _raises(one)]
    meant = not chain or not _raises(chain[0])
    return " or ".join(f"`{shortened(one)}`" for one in tests) + " is true" if tests and meant else ""


def shortened(text: str) -> str:
    """TEXT in a line that a reader can take in."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def settings(
    source: Source, spot: Spot, values: Sequence[tuple[ast.expr, str]], documented: bool = True
) -> tuple[Setting, ...]:
    """The settings in the innermost conditions of SPOT and in its message, with the VALUES that the message shows, and
    if DOCUMENTED with what docstrings say of them."""
    finder = _Settings(source, spot, documented)
    shown = {ast.unparse(node): value for node, value in values if value and len(value) <= _LONGEST_VALUE}
    found: dict[str, Setting] = {}
    for number, node in enumerate((*_tests(spot), *(node for node, _ in values))):
        for text, one in finder.of(node):
            if one.name not in found:
                found[one.name] = msgspec.structs.replace(one, decides=number == 0)
            if text in shown and not found[one.name].value:
                found[one.name] = msgspec.structs.replace(found[one.name], value=shown[text], origin="log")
    return tuple(found.values())


def _tests(spot: Spot) -> Iterator[ast.expr]:
    """The expressions that decide, the innermost first."""
    if isinstance(spot.node, ast.Assert):
        yield spot.node.test
    for node, _ in reversed(spot.around):
        if isinstance(node, Function):
            break
        if isinstance(node, ast.If | ast.While):
            yield node.test
    if spot.around and not any(isinstance(node, ast.If | ast.While) for node, _ in spot.around):
        yield from (one.test for one in reversed(_exits(spot)))


class _Settings:
    """Reads expressions at one place of a file."""

    def __init__(self, source: Source, spot: Spot, documented: bool) -> None:
        self._source, self._spot, self._documented = source, spot, documented
        self._function, self._owner = spot.function, spot.owner
        self._arguments = set(arguments(self._function)) if self._function else set[str]()

    def of(self, node: ast.expr, depth: int = 0, text: str = "") -> Iterator[tuple[str, Setting]]:
        """The settings that NODE reads, each with the source text of what reads it (TEXT, if that stands for NODE)."""
        own = self._own(node)
        if own is not None:
            yield text or ast.unparse(node), own
        elif isinstance(node, ast.Name):
            values = self._source.resolve(self._spot, node.id) if depth < _DEEPEST else ()
            values = [one for value in values[:2] for one in _either(value)]
            for value in values:
                yield from self.of(value, depth + 1, text or node.id)
        else:
            for part in _parts(node):
                # Of what is computed from several, none is the value that is shown.
                yield from self.of(part, depth, f"{text} of" if text else "")
            if isinstance(node, ast.Compare):
                yield from self._limits(node)

    def _own(self, node: ast.expr) -> Setting | None:
        """The setting that NODE itself is."""
        if variable := _variable(node):
            return Setting(name=variable, kind="environment variable")
        base, name = _member(node)
        if base is not None and name:
            return self._of_self(name) if base == "self" else _config(base, name)
        if isinstance(node, ast.Name) and node.id in self._arguments:
            function = self._function
            assert function is not None
            kind: SettingKind = "constructor argument" if function.name in ("__init__", "__new__") else "argument"
            owner = self._owner.name if kind == "constructor argument" and self._owner else function.name
            return Setting(name=node.id, kind=kind, owner=owner, about=self._about(node.id))
        if isinstance(node, ast.Name) and node.id.isupper():
            value = next(iter(self._source.constants.get(node.id, ())), None)
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                return Setting(name=node.id, kind="limit", value=str(value.value), origin="source")
        return None

    def _limits(self, node: ast.Compare) -> Iterator[tuple[str, Setting]]:
        for one, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            number = one.value if isinstance(one, ast.Constant) else None
            if isinstance(number, int | float) and abs(number) > 1:
                name = shortened(ast.unparse(other))
                yield "", Setting(name=name, kind="limit", value=str(number), origin="source")

    def _of_self(self, name: str) -> Setting | None:
        owner = self._owner
        if owner is None:
            return None
        fields = [one for one in owner.body if isinstance(one, ast.AnnAssign) and getattr(one.target, "id", "") == name]
        init = next((one for one in owner.body if isinstance(one, Function) and one.name == "__init__"), None)
        if fields and _CONFIG.match(owner.name):
            return Setting(name=name, kind="config key", owner=owner.name, about=self._about(name))
        taken = arguments(init) if init is not None else []
        name = name if fields or name in taken else name.lstrip("_")
        if fields or name in taken:
            return Setting(name=name, kind="constructor argument", owner=owner.name, about=self._about(name))
        return None

    def _about(self, name: str) -> str:
        """The first sentence that docstrings around say about an argument or a field."""
        if not self._documented:
            return ""
        body = self._owner.body if self._owner else []
        for one, after in pairwise(body):
            if isinstance(one, ast.AnnAssign) and getattr(one.target, "id", "") == name and isinstance(after, ast.Expr):
                return _first_sentence(getattr(after.value, "value", ""))
        inits = [one for one in body if isinstance(one, Function) and one.name == "__init__"]
        for one in filter(None, (self._function, self._owner, *inits)):
            if told := _told(name, (ast.get_docstring(one) or "").split("\n")):
                return _first_sentence(told)
        return ""


def _told(name: str, lines: Sequence[str]) -> str:
    """What a docstring says of NAME: `name (int): What it is.`, `:param name: …`, or in the lines below `name: int`."""
    head = re.compile(rf"\s*(?::param (?:[\w.]+ )?)?[`*]{{0,2}}{re.escape(name)}[`*]{{0,2}}\s*(?:\(.*\))?\s*:(.*)")
    for at, line in enumerate(lines):
        if found := head.match(line):
            indent = len(line) - len(line.lstrip())
            deeper = [len(one) - len(one.lstrip()) > indent for one in lines[at + 1 : at + 4]]
            more = " ".join(compress(lines[at + 1 :], takewhile(bool, deeper)))
            return f"{found[1]} {more}" if " " in found[1].strip() else more or found[1]
    return ""


def _either(node: ast.expr) -> list[ast.expr]:
    return [*_either(node.body), *_either(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions in NODE; the name of a method is none, and what it is called on is one."""
    for one in ast.iter_child_nodes(node):
        if isinstance(node, ast.Call) and one is node.func:
            yield from [one.value] if isinstance(one, ast.Attribute) else []
        elif isinstance(one, ast.expr):
            yield one
        elif isinstance(one, ast.comprehension | ast.keyword):
            yield from _parts(one)


def _first_sentence(text: object) -> str:
    words = " ".join(text.split()) if isinstance(text, str) else ""
    return shortened(re.split(r"(?<=[.;!?])\s", words, maxsplit=1)[0])


def _variable(node: ast.expr) -> str:
    """The environment variable that NODE reads."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
        return _text(node.slice)
    if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(("environ.get", "getenv")):
        return _text(node.args[0])
    if isinstance(node, ast.Attribute) and node.attr.isupper() and isinstance(node.value, ast.Name | ast.Attribute):
        table = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
        return node.attr if table in ("envs", "environment", "env") else ""
    return ""


def _member(node: ast.expr) -> tuple[str | None, str]:
    """What NODE takes and of what: `a.b.name`, `getattr(a.b, "name")`, `a["name"]`, `a.get("name")`."""
    if isinstance(node, ast.Attribute):
        base, name = node.value, node.attr
    elif isinstance(node, ast.Subscript):
        base, name = node.value, _text(node.slice)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr" and node.args[1:]:
        base, name = node.args[0], _text(node.args[1])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
        base, name = node.func.value, _text(node.args[0]) if node.args else ""
    else:
        return None, ""
    if isinstance(base, ast.Name):
        return base.id, name
    return (base.attr, name) if isinstance(base, ast.Attribute) else (None, "")


def _config(base: str, name: str) -> Setting | None:
    return Setting(name=name, kind="config key", owner=base) if _CONFIG.match(base) else None


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
