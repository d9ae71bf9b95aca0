"""The memory of a run as one HTML page: inline SVG, the tables of the report, light and dark, nothing loaded."""

from __future__ import annotations

import re
from html import escape

from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MemoryProfile, Phase
from rlcheck.finding import Exhibit
from rlcheck.measure.memory.summary import by_kind, compared, gib
from rlcheck.report.pages.collectives_page import STYLE
from rlcheck.report.topics.memory import exhibits
from rlcheck.report.topics.memory_bars import COLOURS, OTHER_COLOUR, TITLES, kinds_of, title_of

_WIDTH, _ROW, _BAR = 760, 30, 20
_LEFT, _RIGHT, _TOP = 130, 70, 24
_LEGEND_COLUMNS = 4
_NUMBER = re.compile(r"(x )?[-+]?[\d.,]*")
_MORE_STYLE = """
.limit { stroke: var(--c6); stroke-width: 2; stroke-dasharray: 5 4; } .part { stroke: var(--paper); }
.measured { fill: var(--ink); } pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; }
.words { text-align: left; } .size { paint-order: stroke; stroke: var(--paper); stroke-width: 4; }
"""


def page(facts: Facts, memory: MemoryProfile) -> str:
    """The whole page as text."""
    source = facts.config.value.source if facts.config.value is not None else ""
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>rlcheck memory-profile {escape(source)}</title>\n<style>{STYLE}{_MORE_STYLE}</style>\n</head>\n<body>",
        f"<h1>Memory of {escape(source or 'a run')}</h1>",
        f"<p>{escape(title_of(memory))}. Dashed: what is usable. Point at a part to see its size.</p>",
        _chart(memory),
    ]
    # The first table is the bars again, drawn with characters.
    for exhibit in exhibits(facts)[1:]:
        parts.append(_table(exhibit))
    parts += [f"<p>{escape(note)}</p>" for note in memory.notes]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _chart(memory: MemoryProfile) -> str:
    phases, kinds = memory.phases, kinds_of(memory)
    legend_rows = -(-len(kinds) // _LEGEND_COLUMNS)
    height = _TOP + _ROW * len(phases) + 34 + 20 * legend_rows
    top = max([memory.gpu_bytes, memory.usable_bytes, *(phase.num_bytes for phase in phases), 1])
    scale = (_WIDTH - _LEFT - _RIGHT) / top
    body = [part for row, phase in enumerate(phases) for part in _row(phase, row, scale)]
    limit, end = _LEFT + memory.usable_bytes * scale, _TOP + _ROW * len(phases)
    body.append(f'<line class="limit" x1="{limit:.1f}" x2="{limit:.1f}" y1="{_TOP - 6}" y2="{end}"/>')
    body.append(f'<text x="{limit:.1f}" y="{_TOP - 10}" text-anchor="end">{gib(memory.usable_bytes)} usable</text>')
    rows = {phase.name: row for row, phase in enumerate(phases)}
    for phase, one, error in compared(memory):
        x, y = _LEFT + one.peak_bytes * scale, _TOP + _ROW * rows[phase.name] + _BAR / 2
        hint = f"<title>measured {gib(one.peak_bytes)}: predicted {error:+.1%}</title>"
        body.append(f'<path class="measured" d="M{x:.1f} {y - 6:.1f}l5 6l-5 6l-5 -6z">{hint}</path>')
    # Above the dashed line, so that no number is struck through.
    for row, phase in enumerate(phases):
        x, y = _LEFT + phase.num_bytes * scale + 6, _TOP + _ROW * row + 15
        body.append(f'<text class="size" x="{x:.1f}" y="{y}">{gib(phase.num_bytes)}</text>')
    body += _legend(kinds, end + 26)
    title = f"<title>{escape(title_of(memory))}</title>"
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{title}\n' + "\n".join(body) + "\n</svg>"


def _row(phase: Phase, row: int, scale: float) -> list[str]:
    y, x = _TOP + _ROW * row, float(_LEFT)
    parts = [f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(phase.name)}</text>']
    for kind, size in by_kind(phase).items():
        width = size * scale
        hint = f"<title>{escape(phase.name)}: {escape(TITLES.get(kind, kind))} {gib(size)}</title>"
        parts.append(f'<rect class="part" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" '
                     f'style="fill: {COLOURS.get(kind, OTHER_COLOUR)}">{hint}</rect>')  # fmt: skip
        x += width
    return parts


def _legend(kinds: list[str], y: float) -> list[str]:
    parts: list[str] = []
    step = (_WIDTH - 20) / _LEGEND_COLUMNS
    for number, kind in enumerate(kinds):
        x, line = 10 + (number % _LEGEND_COLUMNS) * step, y + 20 * (number // _LEGEND_COLUMNS)
        colour = COLOURS.get(kind, OTHER_COLOUR)
        parts.append(f'<rect x="{x:.0f}" y="{line - 10:.0f}" width="11" height="11" style="fill: {colour}"/>')
        parts.append(f'<text x="{x + 16:.0f}" y="{line:.0f}">{escape(TITLES.get(kind, kind))}</text>')
    return parts


def _table(exhibit: Exhibit) -> str:
    cells = zip(exhibit.columns, exhibit.rows[0] if exhibit.rows else exhibit.columns, strict=True)
    head = "".join(f"<th{_class(cell)}>{escape(title)}</th>" for title, cell in cells)
    rows = [f"<tr><th>{escape(row[0])}</th>{''.join(_cell(cell) for cell in row[1:])}</tr>" for row in exhibit.rows]
    table = f"<div><table>\n<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table></div>" if rows else ""
    notes = "".join(f"<pre>{escape(note)}</pre>" for note in exhibit.notes)
    return f"<h2>{escape(exhibit.title)}</h2>\n{table}{notes}"


def _cell(text: str) -> str:
    return f"<td{_class(text)}>{escape(text)}</td>"


def _class(text: str) -> str:
    """Words are at the left, numbers at the right."""
    return "" if _NUMBER.fullmatch(text) else ' class="words"'
