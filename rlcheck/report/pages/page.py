"""Where the lines of a text report go: its width, its colours, the characters that may be used."""

from __future__ import annotations

import os
import textwrap
from typing import TextIO

from rlcheck.report.wording import ASCII_SYMBOLS, SYMBOLS, ascii_wanted, clean, to_ascii

STYLES = {"pass": "green", "info": "cyan", "warn": "yellow", "fail": "red", "unknown": "magenta", "error": "red"}
_CODES = {"green": "32", "cyan": "36", "yellow": "33", "red": "31", "magenta": "35", "bold": "1"}
_MIN_WIDTH, _MAX_WIDTH = 40, 120


class Page:
    """Where lines go: knows the width, whether there are colours, and which characters may be used."""

    def __init__(self, out: TextIO, ascii_only: bool) -> None:
        self._out = out
        self._blank = True
        terminal = out.isatty()
        self.ascii = ascii_only or ascii_wanted(out)
        self._colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        # A pipe has no width: lines stay whole there, so that grep finds them.
        self.width = _terminal_width() if terminal else 0
        self.symbols = ASCII_SYMBOLS if self.ascii else SYMBOLS

    def paint(self, text: str, style: str) -> str:
        """`text` in a colour, if there are any."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self._colour and style in _CODES else text

    def plain(self, text: str) -> str:
        """`text` on one line, in characters that the terminal has and that do nothing but show."""
        text = clean(" ".join(text.split()))
        return to_ascii(text) if self.ascii else text

    def typed(self, text: str) -> str:
        """A line to be typed: as `plain`, but every space in it counts."""
        return to_ascii(clean(text)) if self.ascii else clean(text)

    def write(self, line: str = "") -> None:
        """One line, ready made."""
        self._out.write(line + "\n")
        self._blank = not line

    def gap(self) -> None:
        """An empty line, unless one is there."""
        if not self._blank:
            self.write()

    def wrapped(self, first: str, text: str, indent: int) -> None:
        """`text` after `first` (which takes `indent` columns), continued below itself."""
        lines = self.wrap(text, indent)
        self.write(first + lines[0])
        for line in lines[1:]:
            self.write(" " * indent + line)

    def wrap(self, text: str, indent: int) -> list[str]:
        """`text` cut to the width that is left beside `indent`; at least one line."""
        text = self.plain(text)
        if not self.width:
            return [text]
        return textwrap.wrap(text, max(20, self.width - indent), break_long_words=False, break_on_hyphens=False) or [""]


def _terminal_width() -> int:
    try:
        columns = int(os.environ.get("COLUMNS", "") or os.get_terminal_size(1).columns)
    except (OSError, ValueError):
        columns = 0
    # A terminal without a size (in a container, under a CI system) says 0.
    return max(_MIN_WIDTH, min(columns or 80, _MAX_WIDTH))
