"""The report on a terminal: a line for each family, details only where something is wrong."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from typing import TextIO

from rlcheck.report.fold import fold, span, where
from rlcheck.report.model import Exhibit, Finding, Fix, Report
from rlcheck.report.tables import table_lines
from rlcheck.report.wording import (
    ASCII_SYMBOLS,
    SYMBOLS,
    ascii_wanted,
    caution,
    clean,
    counts,
    to_ascii,
    verdict,
    waiver_text,
)

_STYLES = {"pass": "green", "info": "cyan", "warn": "yellow", "fail": "red", "unknown": "magenta", "error": "red"}
_CODES = {"green": "32", "cyan": "36", "yellow": "33", "red": "31", "magenta": "35", "bold": "1"}
_MAX_DETAILS = 6
_MAX_FIXES = 2
_LABEL_WIDTH = 10
_MIN_WIDTH, _MAX_WIDTH = 40, 120


class _Page:
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


def render_text(report: Report, out: TextIO, *, verbose: bool = False, ascii_only: bool = False) -> None:
    """Write the report for a reader at a terminal or behind a pipe."""
    page = _Page(out, ascii_only)
    if len(report.nodes) > 1:
        _nodes(page, report, verbose)
    for node in report.nodes if len(report.nodes) == 1 else ():
        _node(page, report, node, verbose)
    for exhibit in report.exhibits:
        _exhibit(page, exhibit)
    _footer(page, report, verbose)


def _terminal_width() -> int:
    try:
        columns = int(os.environ.get("COLUMNS", "") or os.get_terminal_size(1).columns)
    except (OSError, ValueError):
        columns = 0
    # A terminal without a size (in a container, under a CI system) says 0.
    return max(_MIN_WIDTH, min(columns or 80, _MAX_WIDTH))


def _node(page: _Page, report: Report, node: str, verbose: bool) -> None:
    page.write(page.paint(page.plain(f"rlcheck {report.version} {report.command} on {node}"), "bold"))
    page.write()
    families = [line for line in report.families if line.node == node]
    problems = {f.id for f in report.checks if f.node == node and f.is_problem and f.status in ("fail", "warn")}
    title_width = max((len(line.title) for line in families), default=0)
    for line in families:
        mine = [f for f in report.checks if f.family == line.family and f.node == node]
        symbol = page.paint(f"[{page.symbols[line.status]}]", _STYLES.get(line.status, ""))
        page.wrapped(f"{symbol} {page.plain(line.title):{title_width}}  ", line.headline, title_width + 6)
        unknown = [] if verbose else [f for f in mine if f.is_problem and f.status == "unknown"]
        for finding in mine:
            if finding not in unknown:
                _finding(page, finding, verbose, tuple(id for id in finding.caused_by if id in problems))
        _unknown(page, unknown)


def _nodes(page: _Page, report: Report, verbose: bool) -> None:
    """Many nodes as one block: each family once, each distinct finding once, with the nodes that it is true of."""
    for line in page.wrap(f"rlcheck {report.version} {report.command} on {span(report.nodes)}", 0):
        page.write(page.paint(line, "bold"))
    page.write()
    problems = {(f.id, f.node) for f in report.checks if f.is_problem and f.status in ("fail", "warn")}
    families = fold(report)
    title_width = max((len(family.title) for family in families), default=0)
    for family in families:
        symbol = page.paint(f"[{page.symbols[family.status]}]", _STYLES.get(family.status, ""))
        (headline, nodes), *others = family.headlines
        notes = [where(nodes, report.nodes)] if others else []
        if len(family.nodes) < len(report.nodes) and not family.is_shared:
            notes.append(f"{page.symbols[family.status]} {where(family.nodes, report.nodes)}")
        tail = f" ({'; '.join(notes)})" if notes else ""
        page.wrapped(f"{symbol} {page.plain(family.title):{title_width}}  ", headline + tail, title_width + 6)
        for other, there in others:
            page.wrapped(" " * (title_width + 6), f"{where(there, report.nodes)}: {other}", title_width + 6)
        if family.more:
            page.write(" " * (title_width + 6) + f"and {family.more} more kinds of node")
        unknown: dict[str, list[Finding]] = {}
        for folded in family.findings:
            finding, on = folded.finding, folded.where(report.nodes)
            causes = tuple(id for id in finding.caused_by if all((id, node) in problems for node in folded.nodes))
            if finding.is_problem and finding.status == "unknown" and not verbose:
                unknown.setdefault(on, []).append(finding)
            else:
                _finding(page, finding, verbose, causes, on)
        for on, group in unknown.items():
            _unknown(page, group, f" ({on})" if on else "")


def _finding(page: _Page, finding: Finding, verbose: bool, causes: tuple[str, ...], on: str = "") -> None:
    """One finding; `on` says of which nodes it is true, "" where there is one alone."""
    tail = f" ({on})" if on else ""
    if finding.is_problem and causes and not verbose:
        # One cause, one story: what follows from it is named, and told in full once the cause is mended (or with -v).
        _one_line(page, finding, f"{finding.message} (mend {' and '.join(causes)} first){tail}")
    elif finding.is_problem and finding.status in ("fail", "warn"):
        _problem(page, finding, verbose, on)
    elif finding.is_problem:
        _one_line(page, finding, f"{finding.title}: {finding.message}{tail}")
    elif finding.waived is not None:
        _one_line(page, finding, f"{finding.message} ({waiver_text(finding)}){tail}")
    elif verbose:
        time = f" [{finding.duration_ms:.1f} ms]" if finding.duration_ms >= 1 else ""
        _one_line(page, finding, f"{finding.title}: {finding.message}{time}{tail}")


def _exhibit(page: _Page, exhibit: Exhibit) -> None:
    page.gap()
    for line in page.wrap(exhibit.title, 0):
        page.write(page.paint(line, "bold"))
    columns = [page.plain(title) for title in exhibit.columns]
    rows = [[page.plain(cell) for cell in row] for row in exhibit.rows]
    for line in table_lines(columns, rows, page.width - 4 if page.width else 0):
        page.write(f"    {line}")
    for note in exhibit.notes:
        page.wrapped("    ", note, 4)


def _unknown(page: _Page, findings: list[Finding], tail: str = "") -> None:
    """What could not be made, a line for each reason: one silent tool can leave dozens of checks without an answer."""
    by_reason: dict[str, list[Finding]] = {}
    for finding in findings:
        by_reason.setdefault(finding.message, []).append(finding)
    for reason, group in by_reason.items():
        more = f" (and {len(group) - 1} more checks)" if len(group) > 1 else ""
        _one_line(page, group[0], f"{group[0].title}{more}: {reason}{tail}")


def _one_line(page: _Page, finding: Finding, text: str) -> None:
    symbol = page.paint(page.symbols[finding.status], _STYLES.get(finding.status, ""))
    page.wrapped(f"    {symbol} {page.plain(finding.id)}  ", text, 14)


def _problem(page: _Page, finding: Finding, verbose: bool, on: str = "") -> None:
    symbol = page.paint(page.symbols[finding.status], _STYLES[finding.status])
    head = page.paint(f"{page.plain(finding.id)}  ", "bold")
    lines = page.wrap(finding.title if finding.expected else finding.message, 14)
    page.write(f"    {symbol} {head}{page.paint(lines[0], 'bold')}")
    for line in lines[1:]:
        page.write(" " * 14 + page.paint(line, "bold"))
    if on:
        _labelled(page, "where", on)
    for label, text in _facts(finding):
        _labelled(page, label, text)
    _details(page, [detail for detail in finding.details if detail != finding.found], verbose)
    if finding.why:
        _labelled(page, "why", finding.why)
    _fixes(page, finding, verbose)
    if verbose:
        for item in finding.evidence:
            source = f" ({item.source})" if item.source else ""
            _labelled(page, "evidence", f"{item.fact} = {item.value}{source}")
    _labelled(page, "more", f"rlcheck explain {finding.playbook or finding.id}")
    page.write()


def _details(page: _Page, details: list[str], verbose: bool) -> None:
    shown = details if verbose else details[:_MAX_DETAILS]
    for detail in shown:
        page.wrapped(" " * (6 + _LABEL_WIDTH) + ("- " if page.ascii else "• "), detail, 8 + _LABEL_WIDTH)
    if len(shown) < len(details):
        _labelled(page, "", f"… {len(details) - len(shown)} more (-v shows them)")


def _facts(finding: Finding) -> Iterator[tuple[str, str]]:
    if finding.expected:
        yield "expected", finding.expected
        yield "found", finding.found
    generic = f"expected {finding.expected}, found {finding.found}"
    if finding.expected and finding.message != generic:
        yield "that is", finding.message


def _labelled(page: _Page, label: str, text: str) -> None:
    page.wrapped(f"      {label:{_LABEL_WIDTH}}", text, 6 + _LABEL_WIDTH)


def _fixes(page: _Page, finding: Finding, verbose: bool) -> None:
    shown = finding.fixes if verbose else finding.fixes[:_MAX_FIXES]
    for index, fix in enumerate(shown):
        _fix(page, "fix" if index == 0 else "or", fix)
    if len(shown) < len(finding.fixes):
        _labelled(page, "", f"({len(finding.fixes) - len(shown)} more: see below)")


def _fix(page: _Page, label: str, fix: Fix) -> None:
    note = caution(fix)
    _labelled(page, label, f"{fix.title} ({note})" if note else fix.title)
    for line in fix.command.splitlines():
        # Never cut: a command must survive being copied, however long it is.
        page.write(" " * (8 + _LABEL_WIDTH) + page.typed(line))


def _footer(page: _Page, report: Report, verbose: bool) -> None:
    page.gap()
    for note in report.notes:
        page.wrapped("note: ", note, 6)
    seconds = f" in {report.duration_ms / 1e3:.2f} s" if report.duration_ms else ""
    page.wrapped("", f"{counts(report)}{seconds}", 0)
    page.wrapped("", verdict(report), 0)
    if report.summary.info and not verbose:
        page.wrapped("", f"-v shows the {report.summary.info} worth knowing and everything that passed", 0)
