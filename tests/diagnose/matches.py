"""Texts that a pattern matches and that lack a certain word: found by walking its tree, not by trying at random.

Beside the pattern walks the automaton that looks for the word: a state is how many of its characters have just been
read. Of each state that a part of the pattern can end in, one text is kept. That is exact for all that is regular;
what looks around is held against the text in the end.
"""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

_PARSER: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_FILLERS = "x7 ,:-_/X('\"~\t"
"""Characters that stand for all those of a class that are not in the word."""
_CLASSES = {"CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w",
            "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_NOT_SPACE": r"\S", "CATEGORY_NOT_WORD": r"\W"}  # fmt: skip

_Texts = dict[int, str]
"""A text for each state."""


def without(pattern: str, literal: str, lines: int = 1) -> list[str]:
    """Return texts of LINES lines that PATTERN matches and that lack LITERAL in the first one; none where all hold it.

    There is one for each alternative of PATTERN that has one.

    >>> without("exit (?:code|status) 1", "exit code")
    ['exit status 1']
    """
    tree = _PARSER.parse(pattern)
    compiled = re.compile(pattern)

    def found(forced: dict[int, int]) -> list[str]:
        walk = _Walk(literal, lines, tree.state.flags, forced)
        return [text for state, text in walk.through(tree, {0: ""}).items() if state != walk.found]

    texts = found({})
    if texts:
        texts += [text for forced in _alternatives(tree) for text in found(forced)]
    return [text for text in dict.fromkeys(texts) if compiled.search(text)]


def _alternatives(items: Any) -> Iterator[dict[int, int]]:
    """For each way through the tree (by the identity of its parts) that a walk may be held to."""
    for operation, argument in items:
        name = str(operation)
        if name == "BRANCH":
            for number, part in enumerate(argument[1]):
                yield {id(argument): number}
                yield from ({id(argument): number, **deeper} for deeper in _alternatives(part))
        elif name == "SUBPATTERN":
            yield from _alternatives(argument[3])
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            yield from _alternatives(argument[2])


class _Walk:
    """One walk for one word. `forced` says which alternative of a branch is taken."""

    def __init__(self, literal: str, lines: int, flags: int, forced: dict[int, int]) -> None:
        self.found = len(literal)
        """The state in which the word has been read."""
        self._late = len(literal) + 1  # the first line is over
        self._literal = literal
        self._breaks = "\n" * (lines > 1)
        self._flags = flags
        self._forced = forced
        self._groups: dict[int, Any] = {}
        self._known: dict[tuple[int, str], int] = {}

    def through(self, items: Iterable[tuple[Any, Any]], before: _Texts) -> _Texts:
        """The states after ITEMS, from those of BEFORE."""
        after = before
        for operation, argument in items:
            after = self._step(str(operation), argument, after)
        return after

    def _step(self, operation: str, argument: Any, before: _Texts) -> _Texts:
        if operation in ("LITERAL", "NOT_LITERAL", "IN", "ANY", "CATEGORY"):
            return self._character(operation, argument, before)
        if operation == "BRANCH":
            parts = argument[1]
            chosen = [parts[self._forced[id(argument)]]] if id(argument) in self._forced else parts
            return _joined(self.through(part, before) for part in chosen)
        if operation == "SUBPATTERN":
            self._groups[argument[0]] = argument[3]
            outside, self._flags = self._flags, self._flags | argument[1]
            after = self.through(argument[3], before)
            self._flags = outside
            return after
        if operation == "GROUPREF":
            return self.through(self._groups[argument], before)
        if operation in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeated(argument, before)
        if operation == "ASSERT" and argument[0] > 0 and set(self.through(argument[1], {0: ""})) == {self.found}:
            return {self.found: next(iter(before.values()))}
        assert operation in ("AT", "ASSERT", "ASSERT_NOT"), f"teach this walk {operation}"
        return before

    def _repeated(self, argument: Any, before: _Texts) -> _Texts:
        least, most, items = argument
        for _ in range(least):
            before = self.through(items, before)
        every = before
        for _ in range(min(most - least, self._late + 1)):
            before = {state: text for state, text in self.through(items, before).items() if state not in every}
            if not before:
                break
            every = {**before, **every}
        return every

    def _character(self, operation: str, argument: Any, before: _Texts) -> _Texts:
        after: _Texts = {}
        cased = operation != "LITERAL" or self._flags & re.IGNORECASE
        for character in self._characters(operation, argument) if cased else chr(argument):
            for state, text in before.items():
                over = state in (self.found, self._late)
                after.setdefault(state if over else self._next(state, character), text + character)
        return after

    def _characters(self, operation: str, argument: Any) -> tuple[str, ...]:
        return _characters(_source(operation, argument), self._flags, self._literal + self._breaks)

    def _next(self, state: int, character: str) -> int:
        if (state, character) not in self._known:
            read = self._literal[:state] + character
            fits = (size for size in range(len(read), -1, -1) if read.endswith(self._literal[:size]))
            self._known[state, character] = self._late if character == "\n" else next(fits)
        return self._known[state, character]


def _joined(several: Iterable[_Texts]) -> _Texts:
    every: _Texts = {}
    for texts in several:
        every = {**texts, **every}
    return every


def _source(operation: str, argument: Any) -> str:
    """The part of a class of characters, as it is written."""
    if operation == "ANY":
        return "."
    if operation == "NOT_LITERAL":
        return f"[^{re.escape(chr(argument))}]"
    if operation == "IN":
        negated = str(argument[0][0]) == "NEGATE"
        parts = argument[1:] if negated else argument
        return f"[{'^' * negated}{''.join(_source(str(kind), value) for kind, value in parts)}]"
    if operation == "RANGE":
        return f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
    return re.escape(chr(argument)) if operation == "LITERAL" else _CLASSES[str(argument)]


@cache
def _characters(source: str, flags: int, telling: str) -> tuple[str, ...]:
    """What one character may be: those that tell something, and one for all others."""
    compiled = re.compile(source, flags & (re.IGNORECASE | re.DOTALL | re.ASCII))
    told = [c for c in dict.fromkeys(telling) if compiled.fullmatch(c)]
    others = (c for c in (*_FILLERS, *map(chr, range(32, 256))) if c not in telling and compiled.fullmatch(c))
    return (*itertools.islice(others, 1), *told)
