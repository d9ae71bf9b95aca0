"""Raise sites of the installed stack: drawn by seed, reached for real where that is possible, and read by plain `ast`.

None of the doctor's code is used here: what it says is judged by this reading.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import msgspec

PACKAGES = ("vllm", "ray", "transformers", "torch", "tensordict", "huggingface_hub", "datasets")
LEFT_OUT = {"tests", "testing", "thirdparty_files", "_vendor", "test"}
CONFIG_LIKE = ("config", "cfg", "args", "kwargs", "options", "params", "settings")
TRIALS = 3000
LIMIT_S = 10


class Site(msgspec.Struct):
    """A raise and what stands around it."""

    file: str
    line: int
    function: str
    owner: str
    kind: str
    message: str
    guard: str
    denied: bool
    settings: list[str]
    source: str
    attributes: list[str]
    values: dict[str, str]
    reached: str = ""


def draw(root: Path, number: int, rng: random.Random) -> list[Site]:
    """NUMBER sites, the packages in turns, one a file."""
    files = {package: _files(root, package, rng) for package in PACKAGES if (root / package).is_dir()}
    found: list[Site] = []
    for package in itertools.cycle(files):
        site = next((one for path in files[package] for one in [_one_of(root, path, rng)] if one is not None), None)
        found += [site] if site is not None else []
        if len(found) == number:
            return found
    raise AssertionError


def _files(root: Path, package: str, rng: random.Random) -> Iterator[Path]:
    paths = [path for path in sorted((root / package).rglob("*.py")) if not LEFT_OUT & set(path.parts)]
    rng.shuffle(paths)
    return iter(paths)


def _one_of(root: Path, path: Path, rng: random.Random) -> Site | None:
    text = path.read_text(encoding="utf-8", errors="replace")
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    raises = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) and _rendered(node)[0]]
    return _site(root, path, text, rng.choice(raises)) if raises else None


def _parents(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    while (parent := getattr(node, "parent", None)) is not None:
        yield parent, node
        node = parent


def _rendered(node: ast.Raise) -> tuple[str, dict[str, str]]:
    """The message with tokens for its expressions, and these by name; "" where it is not one literal text."""
    call = node.exc
    if not (isinstance(call, ast.Call) and len(call.args) == 1 and isinstance(call.func, ast.Name)):
        return "", {}
    if not call.func.id[:1].isupper():
        return "", {}
    message = call.args[0]
    if isinstance(message, ast.Name):
        functions = [one for one, _ in _parents(node) if isinstance(one, ast.FunctionDef)]
        sources = [one.value for one in ast.walk(functions[0]) if isinstance(one, ast.Assign)
                   and getattr(one.targets[0], "id", "") == message.id] if functions else []  # fmt: skip
        if len(sources) != 1:
            return "", {}
        message = sources[0]
    tokens = _Tokens()
    try:
        plain = tokens.visit(ast.parse(ast.unparse(message), mode="eval"))
        text = eval(compile(ast.fix_missing_locations(plain), "message", "eval"), {"__builtins__": {}})
    except Exception:
        return "", {}
    words = [word for word in str(text).split() if word.isalpha()]
    return (text, tokens.values) if isinstance(text, str) and len(words) >= 3 else ("", {})


class _Tokens(ast.NodeTransformer):
    """Puts a number or a word for each name, attribute and call but `.format`."""

    def __init__(self) -> None:
        self._next = itertools.count(41)
        self._known: dict[str, int] = {}
        self.values: dict[str, str] = {}

    def _token(self, node: ast.expr) -> ast.expr:
        return ast.copy_location(ast.Constant(value=next(self._next)), node)

    visit_Name = visit_Attribute = visit_Subscript = visit_ListComp = visit_GeneratorExp = _token

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        if isinstance(node.value, ast.IfExp) and _literal(node.value.body):
            return node.value.body  # 's' if there are several
        token = self._known.setdefault(ast.unparse(node.value), next(self._next))
        if name := getattr(node.value, "id", getattr(node.value, "attr", "")):
            self.values.setdefault(name, str(token))
        return ast.copy_location(ast.FormattedValue(ast.Constant(value=token), -1, None), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "format" and _literal(node.func.value):
            node.args = [self._token(one) for one in node.args]
            node.keywords = [ast.keyword(one.arg, self._token(one.value)) for one in node.keywords]
            return node
        return self._token(node)


def _literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.BinOp) and _literal(node.left))


def _site(root: Path, path: Path, text: str, node: ast.Raise) -> Site:
    chain = list(_parents(node))
    function = next((one for one, _ in chain if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)), None)
    owner = next((one for one, _ in chain if isinstance(one, ast.ClassDef)), None)
    within = list(itertools.takewhile(lambda pair: pair[0] is not function, chain))
    guards = [(one, below) for one, below in within if isinstance(one, ast.If | ast.While)]
    test, denied = (guards[0][0].test, guards[0][1] not in guards[0][0].body) if guards else (None, False)
    assert isinstance(node.exc, ast.Call)
    read = [*([test] if test else []), node.exc.args[0]]
    message, values = _rendered(node)
    names = {one.attr for one in ast.walk(function) if isinstance(one, ast.Attribute)
             and isinstance(one.value, ast.Name) and one.value.id == "self"} if function else set[str]()  # fmt: skip
    return Site(
        file=str(path.relative_to(root)),
        line=node.lineno,
        function=function.name if function else "<module>",
        owner=owner.name if owner else "",
        kind=node.exc.func.id,  # type: ignore[attr-defined]
        message=message,
        guard=ast.get_source_segment(text, test) or "" if test else "",
        denied=denied,
        settings=sorted(_settings(read, function, owner)),
        source=text.split("\n")[node.lineno - 1].strip(),
        attributes=sorted(names),
        values=values,
    )


def _settings(read: list[ast.expr], function: Any, owner: ast.ClassDef | None) -> set[str]:
    """Names in the guard and the message that are arguments, fields of self, or keys of a config."""
    taken = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)} if function else set[str]()
    fields = set[str]()
    for one in owner.body if owner else ():
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            fields.add(one.target.id)
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            fields |= {argument.arg for argument in ast.walk(one.args) if isinstance(argument, ast.arg)}
    found = set[str]()
    for node in (one for expression in read for one in ast.walk(expression)):
        called = getattr(getattr(node, "parent", None), "func", None) is node
        if isinstance(node, ast.Name) and node.id in taken - {"self", "cls"} and not _is_base(node):
            found.add(node.id)
        if isinstance(node, ast.Attribute) and not called and not _is_base(node):
            base = getattr(node.value, "id", getattr(node.value, "attr", ""))
            if (base == "self" and node.attr in fields) or base.endswith(CONFIG_LIKE):
                found.add(node.attr)
    return found


def _is_base(node: ast.expr) -> bool:
    """Whether something is taken of it, which is the setting then."""
    parent = getattr(node, "parent", None)
    return isinstance(parent, ast.Attribute | ast.Subscript) and parent.value is node


class _PastError(BaseException):
    """The call went past the raise."""


class _Anything:
    """An object that has every attribute and every key; each has a value of the same kind forever."""

    def __init__(self, rng: random.Random) -> None:
        self.__dict__["_rng"] = rng

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__[name] = value = a_value(self.__dict__["_rng"])
        return value

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, str(name))

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        return a_value(self._rng)

    def __getitem__(self, name: Any) -> Any:
        return getattr(self, str(name))

    def __iter__(self) -> Iterator[Any]:
        return iter([a_value(self._rng), a_value(self._rng)])

    def __len__(self) -> int:
        return 2

    def __contains__(self, _item: Any) -> bool:
        return self._rng.random() < 0.5

    def __lt__(self, _other: Any) -> bool:
        return self._rng.random() < 0.5

    __gt__ = __le__ = __ge__ = __lt__

    def __int__(self) -> int:
        return self._rng.randrange(9)

    __index__ = __int__


def a_value(rng: random.Random) -> Any:
    """Something that may be an argument, and does no harm."""
    plain = [
        None,
        None,
        -1,
        0,
        1,
        2,
        3,
        7.5,
        True,
        False,
        "",
        "rlcheck",
        [],
        [1],
        {},
        {"rlcheck": 1},
        (1, 2),
        SimpleNamespace(),
    ]
    return rng.choice([*plain, *(_Anything(rng) for _ in range(5))])


def reach(site: Site, module: Any, rng: random.Random) -> str:
    """Call the function of SITE with made-up arguments until it raises there; the traceback, "" if it never does."""
    owner = getattr(module, site.owner, None) if site.owner else None
    if site.owner and not isinstance(owner, type):
        return ""
    function: Any = getattr(owner or module, site.function, None)
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    if code is None or not code.co_filename.endswith(site.file):
        return ""
    wanted = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    def watch(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code is code and event == "line" and frame.f_lineno > site.line + 12:
            raise _PastError  # nothing behind the raise is run with made-up values
        return watch if frame.f_code is code or event == "line" else None

    for _ in range(TRIALS):
        given = {name: a_value(rng) for name in wanted}
        if "self" in given and isinstance(owner, type):
            try:
                given["self"] = object.__new__(owner)
                given["self"].__dict__.update({name: a_value(rng) for name in site.attributes})
            except Exception:
                return ""
        sys.settrace(watch)
        try:
            getattr(function, "__wrapped__", function)(**given)
        except Exception as error:
            sys.settrace(None)
            last = traceback.extract_tb(error.__traceback__)[-1]
            if last.filename.endswith(site.file) and last.lineno == site.line and type(error).__name__ == site.kind:
                return traceback.format_exc()
        except BaseException:
            pass
        finally:
            sys.settrace(None)
    return ""


def main() -> None:
    """Reach the sites that standard input names, each in a process of its own, and print the tracebacks as JSON."""
    sites = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Site])
    out, sys.stdout = sys.stdout, sys.stderr
    for number, site in enumerate(sites):
        try:
            module = importlib.import_module(site.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
        except BaseException:
            continue
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            signal.alarm(LIMIT_S)
            os.write(writing, reach(site, module, random.Random(number)).encode()[:60000])
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read().decode("utf-8", "replace")
        os.waitpid(child, 0)
        if text:
            out.write(json.dumps([site.file, site.line, text]) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
