"""Which `raise` or `assert` of a file a traceback comes from: by its line, or by its message where lines have moved."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from rlcheck.diagnose.source.templates import Match, Template, match, templates
from rlcheck.diagnose.source.traces import Frame, Trace

_ENOUGH = 10
"""Characters of a message that name its raise within the function of the frame; in another function, twice as many."""
_TOP = re.compile(rb"^(?:@|def |class |async def |(?!else|try|finally|except)\w+ *[:=])", re.M)
_LARGE = 200 << 10
_LONG_TABLE = 40
_MOST_VALUES = 8
_ALIASES = {"IOError": "OSError", "EnvironmentError": "OSError", "socket.error": "OSError"}
_MESSAGE_ARGUMENTS = ("message", "msg", "detail")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Block = Sequence[ast.stmt]


class Spot(msgspec.Struct, frozen=True):
    """A statement and what is around it, from the module inwards: each node with the name of the block it is in."""

    node: ast.stmt
    around: tuple[tuple[ast.AST, str], ...]

    @property
    def function(self) -> Function | None:
        """The innermost function that it is in."""
        return next((one for one, _ in reversed(self.around) if isinstance(one, Function)), None)

    @property
    def owner(self) -> ast.ClassDef | None:
        """The innermost class that it is in."""
        return next((one for one, _ in reversed(self.around) if isinstance(one, ast.ClassDef)), None)

    @property
    def qualname(self) -> str:
        """`Class.function`; "" at the level of the module."""
        return ".".join(one.name for one, _ in self.around if isinstance(one, Function | ast.ClassDef))


class Choice(msgspec.Struct, frozen=True):
    """The site of a failure. `exact`: the file here has it at the line of the log."""

    spot: Spot
    exact: bool
    match: Match | None


def _thinned(data: bytes, function: str) -> bytes:
    """DATA without the functions, classes and long tables that do not hold FUNCTION; no line changes its number.

    A file of half a megabyte takes longer to parse than all the rest of an answer. Where a text in the file looks like
    code, what is left is no Python, and the caller parses it all.
    """
    needle = f"def {function}(".encode()
    if len(data) < _LARGE or needle not in data:
        return data
    starts = [0, *(match.start() for match in _TOP.finditer(data)), len(data)]
    kept: list[bytes] = []
    decorated = False
    for start, end in pairwise(starts):
        chunk = data[start:end]
        lines = chunk.count(b"\n")
        alone = not decorated and not chunk.startswith((b"def ", b"class ", b"async ", b"@"))
        decorated = chunk.startswith(b"@")
        if needle in chunk or (alone and lines < _LONG_TABLE):
            kept.append(chunk)
        else:
            kept.append(b"\n" * lines)
    return b"".join(kept)


class Source:
    """A parsed file."""

    def __init__(self, data: bytes, function: str = "") -> None:
        """Parse DATA; of a large file, what may be of FUNCTION.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError: it is no Python, or too deep.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.tree = ast.parse(_thinned(data, function))
            except SyntaxError:
                self.tree = ast.parse(data)
        self.lines = data.decode("utf-8", "replace").split("\n")
        self.constants = _assigned(self.tree.body)
        self._local: dict[Function, dict[str, list[ast.expr]]] = {}

    def holds(self, frame: Frame) -> bool:
        """Whether the line of FRAME is here what the log quotes."""
        return (
            bool(frame.source) and frame.line <= len(self.lines) and self.lines[frame.line - 1].strip() == frame.source
        )

    def spots(self) -> Iterator[Spot]:
        """Every statement, outer ones first."""
        waiting: list[tuple[ast.AST, tuple[tuple[ast.AST, str], ...]]] = [(self.tree, ())]
        while waiting:
            node, around = waiting.pop()
            for name in ("body", "orelse", "handlers", "finalbody", "cases"):
                for child in getattr(node, name, ()) if not isinstance(node, ast.expr) else ():
                    inside = (*around, (node, name))
                    if isinstance(child, ast.stmt):
                        yield Spot(child, inside)
                    waiting.append((child, inside))

    def resolve(self, spot: Spot, name: str) -> Sequence[ast.expr]:
        """What NAME may stand for at SPOT: the assignments above it in its function, or those of the module."""
        function = spot.function
        if function is None:
            return self.constants.get(name, ())
        if function not in self._local:
            self._local[function] = _assigned(function.body)
        local = [value for value in self._local[function].get(name, ()) if value.lineno < spot.node.lineno]
        is_argument = name in arguments(function)
        return local[:_MOST_VALUES] or (() if is_argument else self.constants.get(name, ()))


def arguments(function: Function) -> list[str]:
    """The names of its arguments but `self` and `cls`."""
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
    return [one.arg for one in every if one.arg not in ("self", "cls")]


def _assigned(block: Block) -> dict[str, list[ast.expr]]:
    """What is assigned to each name, nested blocks included, the latest first; `+=` leaves a hole behind."""
    found: dict[str, list[ast.expr]] = {}
    waiting = list(block)
    while waiting:
        one = waiting.pop()
        if isinstance(one, Function | ast.ClassDef):
            continue
        value = one.value if isinstance(one, ast.Assign | ast.AnnAssign | ast.AugAssign) else None
        for target in one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]:
            if value is not None and isinstance(target, ast.Name):
                _note(found.setdefault(target.id, []), one, value)
        for name in ("body", "orelse", "finalbody"):
            waiting += getattr(one, name, ())
        for inner in (*getattr(one, "handlers", ()), *getattr(one, "cases", ())):
            waiting += inner.body
    for values in found.values():
        values.sort(key=lambda value: -value.lineno)
    return found


def _note(values: list[ast.expr], one: ast.stmt, value: ast.expr) -> None:
    if isinstance(one, ast.AugAssign):
        # Put before or after what the name has had: the text so far, then something.
        base = ast.copy_location(ast.Name(id="\0"), value)
        value = ast.copy_location(ast.BinOp(left=base, op=ast.Add(), right=value), value)
    values.append(value)


def choose(source: Source, frame: Frame, trace: Trace) -> Choice | None:
    """The raise or assert that TRACE comes from; None where none is surely it."""
    moved: list[tuple[int, bool, Spot, Match]] = []
    named = False
    for spot in source.spots():
        function = spot.function
        same_function = (function.name if function else "<module>") == frame.function
        named = named or (isinstance(spot.node, Function) and spot.node.name == frame.function)
        if not isinstance(spot.node, ast.Raise | ast.Assert):
            continue
        kind, message = what_is_raised(source, spot)
        if kind and kind != _ALIASES.get(trace.type, trace.type):
            continue
        here = spot.node.lineno <= frame.line <= (spot.node.end_lineno or 0)
        fits = _fits(source, spot, message, trace.text, whole=not (here and source.holds(frame)))
        if here and same_function and _is_it(source.holds(frame), kind, message, fits, trace):
            return Choice(spot, True, fits)
        if fits and fits.strength >= _ENOUGH * (1 if same_function else 2):
            moved.append((fits.strength, same_function, spot, fits))
    best = [one for one in moved if one[1] or not named]
    top = max((one[0] for one in best), default=0)
    best = [one for one in best if one[0] == top]
    return Choice(best[0][2], False, best[0][3]) if len(best) == 1 else None


def _is_it(same_line: bool, kind: str, message: ast.expr | None, fits: Match | None, trace: Trace) -> bool:
    """Whether what the line of the log holds here is what was raised; `same_line` if it is as the log quotes it."""
    if message is None:
        says_nothing = not any(trace.text)
        return same_line and (says_nothing or kind != "AssertionError")
    return fits is not None and (same_line or fits.strength >= _ENOUGH // 2)


def what_is_raised(source: Source, spot: Spot) -> tuple[str, ast.expr | None]:
    """The type ("" if a variable) and the message of what is raised."""
    if isinstance(spot.node, ast.Assert):
        return "AssertionError", spot.node.msg
    assert isinstance(spot.node, ast.Raise)
    raised = spot.node.exc
    if isinstance(raised, ast.Name) and not raised.id[:1].isupper():
        raised = next((one for one in source.resolve(spot, raised.id) if isinstance(one, ast.Call)), raised)
    if not isinstance(raised, ast.Call):
        name = _last_name(raised)
        return (_ALIASES.get(name, name) if name.lstrip("_")[:1].isupper() else ""), None
    name = _last_name(raised.func)
    given = [one.value for one in raised.keywords if one.arg in _MESSAGE_ARGUMENTS]
    message = raised.args[0] if raised.args else given[0] if given else None
    if len(raised.args) > 1 or isinstance(message, ast.Starred):
        message = None  # how these are printed is the class's own affair
    return (_ALIASES.get(name, name) if name.lstrip("_")[:1].isupper() else ""), message


def _last_name(node: ast.expr | None) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _fits(source: Source, spot: Spot, message: ast.expr | None, text: Sequence[str], whole: bool) -> Match | None:
    if message is None or not text:
        return None
    forms: list[Template] = templates(message, lambda name: source.resolve(spot, name))
    found = [fits for form in forms if (fits := match(form, text, whole=whole)) is not None]
    return max(found, key=lambda fits: fits.strength, default=None)
