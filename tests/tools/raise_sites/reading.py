"""The raise sites of one Python file: what is raised, with which message, when. Nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from rlcheck.diagnose.model import Setting
from rlcheck.diagnose.source.guards import conditions, settings, way_out
from rlcheck.diagnose.source.recorded import CUT, LOGGED, Entry, is_specific, written
from rlcheck.diagnose.source.sites import Source, Spot, what_is_raised
from rlcheck.diagnose.source.templates import Template, joined, match, templates

LEAST = 12
"""Characters of the longest text of a message: below it, it names nothing."""
_MOST_FORMS = 3
_MOST_CONDITIONS = 2
_MOST_SETTINGS = 3
_LONGEST_CONDITION = 90
_LONGEST_HOLE = 32
_LONGEST_MESSAGE = 140
_EXITS = ("sys.exit", "os._exit", "exit", "quit")
_LOGGERS = ("error", "critical", "fatal")


class Found(NamedTuple):
    """A site without its package and releases."""

    file: str
    entry: Entry


def sites(name: str, data: bytes) -> list[Found]:
    """Return the sites of the file NAME with DATA; none if it is no Python of this version."""
    if b"raise " not in data and b"assert " not in data and b"exit(" not in data:
        return []
    try:
        source = Source(data)
        return list(dict.fromkeys(Found(name, one) for spot in source.spots() for one in _entries(source, spot)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _entries(source: Source, spot: Spot) -> Iterator[Entry]:
    if isinstance(spot.node, ast.Raise | ast.Assert):
        kind, message = what_is_raised(source, spot)
    else:
        kind, message = "", _logged_before_exit(spot)
        kind = LOGGED if message is not None else ""
    if message is None or (kind == "NotImplementedError" and not conditions(spot)):
        return  # says nothing, or is what a subclass has to bring
    forms = [joined(form) for form in templates(message, lambda name: source.resolve(spot, name))]
    forms = [form for form in forms if _says_something(form)]
    forms.sort(key=lambda form: sum(len(part) for part in form if isinstance(part, str)))
    kept: list[Template] = []
    for form in forms:
        if not any(_covers(one, form) for one in kept):
            kept.append(tuple(form))
    yield from (_entry(source, spot, kind, form) for form in kept[-_MOST_FORMS:])


def _covers(one: Template, other: Sequence[str | ast.expr]) -> bool:
    """Whether each message of the form OTHER is one of the form ONE, and names its site as surely."""
    text = "".join(part if isinstance(part, str) else "x" for part in other)
    return is_specific(written(one)) and match(one, [text]) is not None


def _says_something(form: Sequence[str | ast.expr]) -> bool:
    texts = [part.strip() for part in form if isinstance(part, str)]
    return max(map(len, texts), default=0) >= LEAST


def _entry(source: Source, spot: Spot, kind: str, form: Sequence[str | ast.expr]) -> Entry:
    form = _cut(form)
    holes = [part for part in form if isinstance(part, ast.expr)]
    marks = [(hole, f"\0{number}") for number, hole in enumerate(holes)]
    known = settings(source, spot, marks, documented=False)
    guards = conditions(spot)
    said = [part if isinstance(part, str) else _hole(part) for part in form]
    return Entry(
        kind=kind,
        function=spot.qualname or "<module>",
        first=0,
        last=0,
        conditions=_nearest(guards),
        settings=tuple(_setting(one) for one in known if _worth_keeping(one))[:_MOST_SETTINGS],
        turns=_turns(spot, guards),
        template=written(said),
    )


def _cut(form: Sequence[str | ast.expr]) -> list[str | ast.expr]:
    """FORM without what comes after so many characters; a hole stands for it."""
    kept: list[str | ast.expr] = []
    room = _LONGEST_MESSAGE
    for part in form:
        if isinstance(part, str) and len(part) > room:
            head = part[:room].rpartition(" ")[0]
            return [*kept, *([f"{head} "] if head else []), ast.Name(id=CUT)]
        kept.append(part)
        room -= len(part) if isinstance(part, str) else 0
    return kept


def _hole(node: ast.expr) -> ast.expr:
    text = " ".join(ast.unparse(node).split())
    plain = len(text) <= _LONGEST_HOLE and not set(text) & set("{}\0") and text != "None"
    return ast.Name(id=text if plain else "")


def _nearest(guards: Sequence[str]) -> tuple[str, ...]:
    """The innermost of GUARDS, and the one around it if both are short."""
    last = [_short(one) for one in guards[-_MOST_CONDITIONS:]]
    return tuple(last if sum(map(len, last)) <= _LONGEST_CONDITION else last[-1:])


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_CONDITION else f"{text[: _LONGEST_CONDITION - 4].removesuffix(' ...')} ..."


def _worth_keeping(one: Setting) -> bool:
    return one.name.isidentifier() and (
        one.decides or one.value.startswith("\0") or one.kind in ("config key", "environment variable")
    )


def _setting(one: Setting) -> Setting:
    """ONE without what the rest of its line says; a value that a message shows is the number of its hole."""
    shown = one.value.startswith("\0")
    return msgspec.structs.replace(
        one, owner="",
        value=one.value[1:] if shown else one.value if one.kind == "limit" else "",
        origin="log" if shown else "source" if one.kind == "limit" else "",
    )  # fmt: skip


def _turns(spot: Spot, guards: tuple[str, ...]) -> bool:
    """Whether it is the innermost condition alone that keeps a run from SPOT."""
    goal = way_out(spot)
    if not goal or not guards:
        return False
    return goal == f"`{guards[-1]}` is no longer true" or (isinstance(spot.node, ast.Assert) and len(guards) == 1)


def _logged_before_exit(spot: Spot) -> ast.expr | None:
    """The message of `logger.error(…)` where the next statement ends the process."""
    call = spot.node.value if isinstance(spot.node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in _LOGGERS:
        return None
    parent, name = spot.around[-1]
    block: list[ast.stmt] = getattr(parent, name)
    at = block.index(spot.node)
    after = block[at + 1] if at + 1 < len(block) else None
    if not call.args or not _ends(after):
        return None
    message, values = call.args[0], call.args[1:]
    return ast.BinOp(message, ast.Mod(), ast.Tuple(values)) if values else message


def _ends(node: ast.stmt | None) -> bool:
    if isinstance(node, ast.Raise):
        return node.exc is not None and "SystemExit" in ast.unparse(node.exc)
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) in _EXITS
