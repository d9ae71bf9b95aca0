"""A table as lines of text that are never wider than they may be."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_MIN_COLUMN = 6
_NUMBER_STARTS = "0123456789+-x.u?·!"


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The lines of a table; with `width` 0 as wide as it likes.

    Columns are brought closer, then the widest are wrapped. A table that fits in no way becomes a list: a row's first
    cell, and below it a line for each further column.
    """
    cells = [list(columns), *(list(row) for row in rows)] if any(columns) else [list(row) for row in rows]
    if not cells:
        return []
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
    right = [n > 0 and _is_numeric([row[n] for row in rows]) for n in range(len(widths))]
    for gap in (2, 1) if width else (2,):
        if not width or sum(widths) + gap * (len(widths) - 1) <= width:
            return [line for row in cells for line in _row(row, widths, gap, right)]
    room = width - (len(widths) - 1)
    while sum(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _MIN_COLUMN:
            return [line for row in rows for line in _listed(columns, row, width)]
        widths[widest] -= 1
    return [line for row in cells for line in _row(row, widths, 1, right)]


def _is_numeric(values: Sequence[str]) -> bool:
    filled = [value for value in values if value]
    # Versions and addresses have several dots; they are read from the left.
    return bool(filled) and all(v[0] in _NUMBER_STARTS and len(v) <= 12 and v.count(".") < 2 for v in filled)


def _row(cells: Sequence[str], widths: Sequence[int], gap: int, right: Sequence[bool]) -> list[str]:
    wrapped = [textwrap.wrap(cell, max(1, size), break_on_hyphens=False) or [""]
               for cell, size in zip(cells, widths, strict=True)]  # fmt: skip
    lines: list[str] = []
    for height in range(max(len(part) for part in wrapped)):
        texts = [part[height] if height < len(part) else "" for part in wrapped]
        aligned = [text.rjust(size) if to_right else text.ljust(size)
                   for text, size, to_right in zip(texts, widths, right, strict=True)]  # fmt: skip
        lines.append((" " * gap).join(aligned).rstrip())
    return lines


def _listed(columns: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    lines = textwrap.wrap(row[0], width) or ["-"]
    for title, cell in zip(columns[1:], row[1:], strict=True):
        if cell:
            text = f"{title}: {cell}" if title else cell
            lines += textwrap.wrap(text, max(10, width), initial_indent="  ", subsequent_indent="    ")
    return lines
