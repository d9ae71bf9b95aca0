"""Integer arithmetic of the shell: `$((a * 2))`, once its variables are replaced."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SUM = re.compile(r"[\d\s+*/()%-]+")
# Characters of the longest expression that is computed.
_MAX_LENGTH = 200


def total(text: str) -> int | None:
    """What the shell makes of TEXT; None where it is no arithmetic of numbers."""
    if not _SUM.fullmatch(text) or len(text) > _MAX_LENGTH or "**" in text:
        return None
    try:
        return _Sum(text).total()
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


@dataclass
class _Sum:
    """Integer arithmetic with + - * / % and brackets."""

    text: str
    at: int = 0

    def total(self) -> int:
        value = self._terms()
        if self._sign():
            raise ValueError(self.text)
        return value

    def _sign(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def _terms(self) -> int:
        value = self._product()
        while (sign := self._sign()) in ("+", "-") and sign:
            self.at += 1
            other = self._product()
            value = value + other if sign == "+" else value - other
        return value

    def _product(self) -> int:
        value = self._factor()
        while (sign := self._sign()) in ("*", "/", "%") and sign:
            self.at += 1
            other = self._factor()
            # The shell rounds towards zero.
            value = value * other if sign == "*" else int(value / other) if sign == "/" else value % other
        return value

    def _factor(self) -> int:
        sign = self._sign()
        if sign == "-":
            self.at += 1
            return -self._factor()
        if sign == "(":
            self.at += 1
            value = self._terms()
            if self._sign() != ")":
                raise ValueError(self.text)
            self.at += 1
            return value
        number = re.compile(r"\d+").match(self.text, self.at)
        if number is None:
            raise ValueError(self.text)
        self.at = number.end()
        return int(number[0])
