"""What the HTML pages of runs and of drift share: their head, their style, the tables of a report."""

from __future__ import annotations

import re
from html import escape

from rlcheck.finding import Exhibit
from rlcheck.report.pages.collectives_page import STYLE
from rlcheck.report.wording import clean

_CHART = re.compile("[▁-█]")
_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?%?")
MORE_STYLE = """
body { max-width: 1240px; } .fail { color: var(--c6); } .warn { color: var(--c5); } .pass { color: var(--c2); }
article { border-left: 4px solid var(--line); padding: 2px 12px; margin: 12px 0; }
article.fail, article.warn { color: var(--ink); border-color: var(--c6); } article.warn { border-color: var(--c5); }
article h3 { font-size: 1rem; margin: 4px 0; } article p { margin: 4px 0; color: var(--ink); }
pre, .words { white-space: pre-wrap; overflow-wrap: anywhere; text-align: left; }
pre { font-size: 13px; margin: 4px 0; max-height: 16em; overflow: auto; unicode-bidi: plaintext; }
td.chart { white-space: nowrap; text-align: left; }
td.words { max-width: 40em; } details { margin: 10px 0; } summary { cursor: pointer; }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(360px, 1fr)); gap: 10px; }
.sample { border: 1px solid var(--line); border-radius: 4px; padding: 4px 10px; min-width: 0; }
.sample p { font-size: 13px; margin: 2px 0; } .sample h4 { font-size: 12px; margin: 4px 0 0; color: var(--faint); }
.key { color: var(--faint); } .first { font-size: 1.1rem; color: var(--ink); }
"""


def head(title: str, style: str) -> str:
    """Everything before the first heading. The policy forbids the page to load anything."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}{style}</style>\n</head>\n<body>",
        )
    )


def table(exhibit: Exhibit) -> str:
    """A table of the report, with its title and notes."""
    columns = "".join(f'<th class="words">{escape(clean(title))}</th>' for title in exhibit.columns)
    rows = ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in exhibit.rows]
    body = f"<div><table><tr>{columns}</tr>" + "\n".join(rows) + "</table></div>" if rows else ""
    notes = "".join(f"<p>{escape(clean(note))}</p>" for note in exhibit.notes)
    return f"<h2>{escape(clean(exhibit.title))}</h2>\n{body}{notes}"


def _cell(text: str) -> str:
    kind = ' class="chart"' if _CHART.search(text) else "" if _NUMBER.fullmatch(text) else ' class="words"'
    return f"<td{kind}>{escape(clean(text))}</td>"
