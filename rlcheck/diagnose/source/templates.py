"""What the message of a `raise` is made of: texts that are always in it, and expressions whose values are."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from typing import NamedTuple

Template = tuple[str | ast.expr, ...]
"""Texts, and the expressions that are filled in between them."""
Resolve = Callable[[str], Sequence[ast.expr]]
"""What a name may stand for: the expressions that are assigned to it before the place in question."""

_MOST = 12
_DEEPEST = 6
_PERCENT = re.compile(r"%(?:\((\w+)\))?[-+ #0]*(?:\d+|\*)?(?:\.\d+)?([a-zA-Z%])")
_BRACES = re.compile(r"\{\{|\}\}|\{(\w*)[^{}]*\}")
_SAME_TEXT = {"strip", "lstrip", "rstrip", "dedent", "cleandoc", "fill"}
_SPACE = re.compile(r"\s+")


class Match(NamedTuple):
    """How many characters of a message are texts of the template, and the values between them."""

    strength: int
    values: tuple[tuple[ast.expr, str], ...]


def templates(node: ast.expr, resolve: Resolve, depth: int = 0) -> list[Template]:
    """The forms that the text of NODE may have, a few at most; an expression of unknown text is a hole."""
    if depth > _DEEPEST:
        return [(node,)]
    found = list(islice(_forms(node, resolve, depth + 1), _MOST))
    return found or [(node,)]


def _forms(node: ast.expr, resolve: Resolve, depth: int) -> Iterator[Template]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield (node.value,)
    elif isinstance(node, ast.JoinedStr):
        parts = [templates(value, resolve, depth) for value in node.values]
        yield from (sum(chosen, ()) for chosen in product(*parts))
    elif isinstance(node, ast.FormattedValue):
        # How a value is printed does not matter; that of a name for a text is the text.
        yield from templates(node.value, resolve, depth) if isinstance(node.value, ast.Name) else [(node.value,)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        both = product(templates(node.left, resolve, depth), templates(node.right, resolve, depth))
        yield from (left + right for left, right in both)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        yield from (_filled(form, _PERCENT, _percent_values(node.right)) for form in _texts(node.left, resolve, depth))
    elif isinstance(node, ast.IfExp):
        yield from (*templates(node.body, resolve, depth), *templates(node.orelse, resolve, depth))
    elif isinstance(node, ast.Call):
        yield from _of_call(node, resolve, depth)
    elif isinstance(node, ast.Name):
        yield (node,)  # first: of many forms only some are tried, and this one fits whatever the name stands for
        for value in resolve(node.id):
            yield from (form for form in templates(value, resolve, depth) if any(map(_is_text, form)))


def _is_text(part: str | ast.expr) -> bool:
    return isinstance(part, str)


def _of_call(node: ast.Call, resolve: Resolve, depth: int) -> Iterator[Template]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "format" and isinstance(node.func, ast.Attribute):
        given: dict[str, ast.expr] = {str(number): value for number, value in enumerate(node.args)}
        given.update((keyword.arg or "", keyword.value) for keyword in node.keywords)
        yield from (_filled(form, _BRACES, given) for form in _texts(node.func.value, resolve, depth))
    elif name in _SAME_TEXT:
        inner = [*node.args[:1], *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
        yield from (form for value in inner for form in templates(value, resolve, depth) if any(map(_is_text, form)))
    elif name in ("str", "repr") and len(node.args) == 1:
        yield from templates(node.args[0], resolve, depth)


def _texts(node: ast.expr, resolve: Resolve, depth: int) -> Iterator[str]:
    """Those forms of NODE that are text alone."""
    for form in templates(node, resolve, depth):
        if all(map(_is_text, form)):
            yield "".join(part for part in form if isinstance(part, str))


def _percent_values(right: ast.expr) -> dict[str, ast.expr]:
    if isinstance(right, ast.Dict):
        pairs = zip(right.keys, right.values, strict=True)
        return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
    values = right.elts if isinstance(right, ast.Tuple) else [right]
    return {str(number): value for number, value in enumerate(values)}


def _filled(text: str, place: re.Pattern[str], given: dict[str, ast.expr]) -> Template:
    """TEXT with what is GIVEN at its places, which are named or numbered in their order."""
    parts: list[str | ast.expr] = []
    at = number = 0
    for match in place.finditer(text):
        parts.append(text[at : match.start()])
        at = match.end()
        if match[0] in ("{{", "}}", "%%"):
            parts.append(match[0][0])
            continue
        name = match[1] or str(number)
        number += not match[1]
        parts.append(given.get(name, ast.Constant(value=None)))
    return (*parts, text[at:])


def match(template: Template, lines: Sequence[str], *, whole: bool = True) -> Match | None:
    """How TEMPLATE fits a message that begins with the first of LINES and ends with one of them; None if it does not.

    Without WHOLE, more may follow: some classes of exceptions add to what they are given.
    The time is linear in the message for each text: no pattern of a library is run on a foreign log.
    """
    parts = joined(template)
    text = "\n".join(plain for line in lines if (plain := " ".join(line.split())))
    ends = {at for at, char in enumerate(text) if char == "\n"} | {len(text)}
    text = text.replace("\n", " ")
    at, strength, hole, values = 0, 0, list[ast.expr](), list[tuple[ast.expr, str]]()
    for number, part in enumerate(parts):
        if isinstance(part, ast.expr):
            hole.append(part)
            continue
        found = _find(part, text, at, bool(hole), ends if whole and number == len(parts) - 1 else None)
        if found < 0:
            return None
        values += [(hole[0], text[at:found].strip())] if len(hole) == 1 else []
        hole.clear()
        at, strength = found + len(part), strength + len(part.strip())
    if len(hole) == 1:
        values.append((hole[0], text[at : min(end for end in ends if end >= at)].strip()))
    return Match(strength, tuple(values))


def joined(template: Template) -> list[str | ast.expr]:
    """The parts with neighbouring texts in one and white space as a message has it; empty texts left out."""
    parts: list[str | ast.expr] = []
    for part in template:
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    plain = [_SPACE.sub(" ", part) if isinstance(part, str) else part for part in parts]
    if plain and isinstance(plain[0], str):
        plain[0] = plain[0].lstrip()
    if plain and isinstance(plain[-1], str):
        plain[-1] = plain[-1].rstrip()
    return [part for part in plain if part != ""]


def _find(part: str, text: str, at: int, after_hole: bool, ends: set[int] | None) -> int:
    """Where PART is in TEXT: at AT or, after a hole, from there on; if it is the last, only where a line ends."""
    if not after_hole:
        fits = text.startswith(part, at) and (ends is None or at + len(part) in ends)
        return at if fits else -1
    found = text.find(part, at)
    while found >= 0 and ends is not None and found + len(part) not in ends:
        found = text.find(part, found + 1)
    return found
