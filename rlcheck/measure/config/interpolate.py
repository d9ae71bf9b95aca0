"""Interpolations of OmegaConf (`${a.b}`, `${.c}`, `${oc.env:V,d}`, `${oc.select:k,d}`) in a tree, without OmegaConf."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from rlcheck.measure.config.hydra_values import ValueSyntaxError, hydra_value
from rlcheck.measure.config.trees import NoKeyError, Tree, find

MISSING = "???"
_MAX_DEPTH = 30
_RELATIVE = re.compile(r"(\.+)(.*)")


class _UnresolvedError(Exception):
    """Why an interpolation has no value here."""


@dataclass
class Resolver:
    """Resolves every interpolation of a tree once."""

    tree: Tree
    environ: Mapping[str, str] | None = None
    """Where `oc.env` looks; None: nowhere, for a config of another machine."""
    resolvers: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Any])
    """What the framework itself registers, by name."""
    unresolved: dict[str, str] = field(default_factory=dict[str, str])
    """Dotted key to the reason that its interpolation was left as it is."""
    wrong: dict[str, str] = field(default_factory=dict[str, str])
    """Dotted key to what the framework itself would stumble over: a key that is not there, a circle."""
    _done: dict[str, Any] = field(default_factory=dict[str, Any])
    _active: set[str] = field(default_factory=set[str])
    """Keys on the way to the one that is being resolved."""

    def resolved(self) -> Tree:
        """The tree with values in place of interpolations; those that have none stay text."""
        return cast(Tree, self._value(self.tree, ()))

    def _value(self, node: Any, at: tuple[str, ...]) -> Any:
        if isinstance(node, dict):
            return {name: self._value(inner, (*at, name)) for name, inner in cast(Tree, node).items()}
        if isinstance(node, list):
            items = cast("list[Any]", node)
            return [self._value(inner, (*at, str(number))) for number, inner in enumerate(items)]
        if not (isinstance(node, str) and "${" in node):
            return node
        key = ".".join(at)
        if key in self._active:
            self.wrong[key] = "refers to itself"
            return node
        self._active.add(key)
        try:
            return self._text(node, at, 0)
        except _UnresolvedError as error:
            self.unresolved[key] = str(error)
        except NoKeyError as error:
            self.wrong[key] = f"names `{error}`, which is not there"
        except RecursionError:
            self.wrong[key] = "refers to itself"
        finally:
            self._active.discard(key)
        return node

    def _text(self, text: str, at: tuple[str, ...], depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise RecursionError
        parts = list(_parts(text))
        if len(parts) == 1 and parts[0][0]:
            return self._one(parts[0][1], at, depth)
        return "".join(_shown(self._one(inner, at, depth)) if code else inner for code, inner in parts)

    def _one(self, inner: str, at: tuple[str, ...], depth: int) -> Any:
        """The value of `${inner}`."""
        while "${" in inner and ":" not in inner.split("${", maxsplit=1)[0]:
            inner = str(self._text(inner, at, depth + 1))
        name, colon, rest = inner.partition(":")
        if not colon:
            return self._select(inner.strip(), at, depth)
        arguments = [argument.strip() for argument in _split(rest)]
        name = name.strip()
        if name == "oc.env":
            return self._environment(arguments, at, depth)
        if name == "oc.select":
            return self._or_default(arguments, at, depth)
        if name == "oc.decode":
            value = self._argument(rest, at, depth)
            return _decoded(value) if isinstance(value, str) else value
        if name in self.resolvers:
            try:
                return self.resolvers[name](*(self._argument(argument, at, depth) for argument in arguments))
            except (TypeError, ValueError, ArithmeticError):
                raise _UnresolvedError(f"`{name}` of {rest.strip()} has no value") from None
        raise _UnresolvedError(f"the resolver `{name}` is known only to the program")

    def _select(self, key: str, at: tuple[str, ...], depth: int) -> Any:
        matched = _RELATIVE.fullmatch(key)
        above = list(at[: len(at) - len(matched[1])]) if matched else []
        parts = [*above, *(matched[2] if matched else key).replace("[", ".").replace("]", "").split(".")]
        parts = [part for part in parts if part]
        target = ".".join(parts)
        if target in self._done:
            return self._done[target]
        try:
            node: Any = find(self.tree, parts)
        except NoKeyError:
            node = self._through(parts, depth)
        if isinstance(node, str) and "${" in node:
            node = self._text(node, tuple(parts), depth + 1)
        elif isinstance(node, dict | list) and depth < _MAX_DEPTH:
            node = self._value(cast(Any, node), tuple(parts))
        self._done[target] = node
        return cast(Any, node)

    def _through(self, parts: list[str], depth: int) -> Any:
        """The value below a section that is an interpolation itself."""
        for length in range(len(parts) - 1, 0, -1):
            try:
                node = find(self.tree, parts[:length])
            except NoKeyError:
                continue
            if isinstance(node, str) and "${" in node and depth < _MAX_DEPTH:
                return find(self._text(node, tuple(parts[:length]), depth + 1), parts[length:])
            break
        raise NoKeyError(".".join(parts))

    def _environment(self, arguments: list[str], at: tuple[str, ...], depth: int) -> Any:
        name = arguments[0] if arguments else ""
        found = None if self.environ is None else self.environ.get(name)
        if found is not None:
            return found
        if len(arguments) > 1:
            return self._argument(",".join(arguments[1:]), at, depth)
        raise _UnresolvedError(f"the environment variable {name} is not set here")

    def _or_default(self, arguments: list[str], at: tuple[str, ...], depth: int) -> Any:
        key = str(self._text(arguments[0], at, depth + 1)) if "${" in arguments[0] else arguments[0]
        try:
            found = self._select(key, at, depth + 1)
        except NoKeyError:
            found = MISSING
        if found == MISSING:
            return self._argument(arguments[1], at, depth) if len(arguments) > 1 else None
        return found

    def _argument(self, text: str, at: tuple[str, ...], depth: int) -> Any:
        text = text.strip()
        return self._text(text, at, depth + 1) if "${" in text else _decoded(text)


def environment() -> Mapping[str, str]:
    """The variables of this process."""
    return os.environ


def _decoded(text: str) -> Any:
    try:
        return hydra_value(text)
    except ValueSyntaxError:
        return text


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """TEXT in pieces: (True, what is inside `${…}`), or (False, plain text)."""
    start = 0
    while (opened := text.find("${", start)) >= 0:
        if opened > start:
            yield False, text[start:opened]
        depth, at = 1, opened + 2
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if depth:
            raise _UnresolvedError("a } is missing")
        yield True, text[opened + 2 : at - 1]
        start = at
    if start < len(text):
        yield False, text[start:]


def _split(text: str) -> list[str]:
    """TEXT at its commas, but for those inside brackets or quotes."""
    parts, depth, quote, start = list[str](), 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "[{(":
            depth += 1
        elif sign in "]})":
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
