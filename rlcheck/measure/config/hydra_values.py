"""Values of overrides as Hydra's grammar reads them: quotes, lists, mappings, words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlcheck.measure.config.document import scalar_of

_MAX_DEPTH = 30


class ValueSyntaxError(Exception):
    """A value that cannot be read. The message says why."""


def hydra_value(text: str) -> Any:
    """The value that Hydra makes of TEXT, what is behind `=`.

    Raises:
        ValueSyntaxError: brackets or quotes that do not close, or something behind them.
    """
    text = text.strip()
    if not text:
        return ""
    if text[0] not in "[{'\"":
        return _word(text)
    reader = _Reader(text)
    value = reader.value(0)
    reader.blank()
    if reader.at < len(text):
        raise ValueSyntaxError(f"found {text[reader.at :][:20]!r} behind the value")
    return value


def _word(text: str) -> Any:
    """A plain word; yes, no, on and off are text to Hydra."""
    value = scalar_of(text)
    if isinstance(value, bool) and text.lower() not in ("true", "false"):
        return text
    if value is None and text.lower() != "null":
        return text
    return value


@dataclass
class _Reader:
    text: str
    at: int = 0

    def blank(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueSyntaxError("nested deeper than any config")
        self.blank()
        first = self.text[self.at : self.at + 1]
        if first == "[":
            return self._list(depth)
        if first == "{":
            return self._mapping(depth)
        if first in ("'", '"') and first:
            return self._quoted(first)
        return _word(self._plain(",]}"))

    def _list(self, depth: int) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while not self._closes("]"):
            items.append(self.value(depth + 1))
            self._comma("]")
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        self.at += 1
        found: dict[str, Any] = {}
        while not self._closes("}"):
            self.blank()
            quote = self.text[self.at : self.at + 1]
            name = self._quoted(quote) if quote in ("'", '"') and quote else self._plain(":,}")
            self.blank()
            if self.text[self.at : self.at + 1] != ":":
                raise ValueSyntaxError(f"expected `:` behind the key {name!r} of a mapping")
            self.at += 1
            found[name] = self.value(depth + 1)
            self._comma("}")
        return found

    def _closes(self, bracket: str) -> bool:
        self.blank()
        if self.at >= len(self.text):
            raise ValueSyntaxError(f"a {bracket} is missing")
        if self.text[self.at] != bracket:
            return False
        self.at += 1
        return True

    def _comma(self, bracket: str) -> None:
        self.blank()
        following = self.text[self.at : self.at + 1]
        if following == ",":
            self.at += 1
        elif following != bracket:
            found = f"found {self.text[self.at :][:20]!r}" if following else "it ends"
            raise ValueSyntaxError(f"expected `,` or `{bracket}`, {found}")

    def _quoted(self, quote: str) -> str:
        self.at += 1
        found: list[str] = []
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == "\\" and self.text[self.at + 1 : self.at + 2] == quote:
                found.append(quote)
                self.at += 2
                continue
            self.at += 1
            if sign == quote:
                return "".join(found)
            found.append(sign)
        raise ValueSyntaxError(f"a {quote} is missing")

    def _plain(self, ends: str) -> str:
        """Text up to one of ENDS; an interpolation in it is kept whole."""
        start, depth = self.at, 0
        while self.at < len(self.text):
            sign = self.text[self.at]
            if self.text.startswith("${", self.at):
                depth += 1
            elif sign == "}" and depth:
                depth -= 1
                self.at += 1
                continue
            elif depth == 0 and sign in ends:
                break
            self.at += 1
        return self.text[start : self.at].strip()
