"""The report on a terminal: a line for each family, details only where something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rlcheck.finding import Exhibit, Finding, Fix, Report
from rlcheck.report.fold import fold, span, where
from rlcheck.report.pages.page import STYLES, Page
from rlcheck.report.tables import table_lines
from rlcheck.report.wording import caution, counts, failure, first_words, verdict, waiver_text

_MAX_DETAILS = 6
_MAX_FIXES = 2
_LABEL_WIDTH = 10
_SILENT = "the run does not say"
_NOT_WRITTEN = "the run does not write the metrics that they read (-v names them)"
"""A run of few metrics leaves dozens of checks without an answer, each for a reason of its own words."""


def render_text(report: Report, out: TextIO, *, verbose: bool = False, ascii_only: bool = False) -> None:
    """Write the report for a reader at a terminal or behind a pipe."""
    page = Page(out, ascii_only)
    if len(report.nodes) > 1:
        _nodes(page, report, verbose)
    for node in report.nodes if len(report.nodes) == 1 else ():
        _node(page, report, node, verbose)
    for exhibit in report.exhibits:
        _exhibit(page, exhibit)
    _footer(page, report, verbose)


def _node(page: Page, report: Report, node: str, verbose: bool) -> None:
    page.write(page.paint(page.plain(f"rlcheck {report.version} {report.command} on {node}"), "bold"))
    _first(page, report)
    page.write()
    families = [line for line in report.families if line.node == node]
    problems = {f.id for f in report.checks if f.node == node and f.is_problem and f.status in ("fail", "warn")}
    title_width = max((len(line.title) for line in families), default=0)
    for line in families:
        mine = [f for f in report.checks if f.family == line.family and f.node == node]
        symbol = page.paint(f"[{page.symbols[line.status]}]", STYLES.get(line.status, ""))
        page.wrapped(f"{symbol} {page.plain(line.title):{title_width}}  ", line.headline, title_width + 6)
        unknown = [] if verbose else [f for f in mine if f.is_problem and f.status == "unknown"]
        for finding in mine:
            if finding not in unknown:
                _finding(page, finding, verbose, tuple(id for id in finding.caused_by if id in problems))
        _unknown(page, unknown)


def _first(page: Page, report: Report) -> None:
    """Write what to fix first in a run."""
    first = first_words(report)
    for number, line in enumerate(page.wrap(first, 7) if first else ()):
        page.write(page.paint(f"{'       ' if number else ''}{line}", "bold"))


def _nodes(page: Page, report: Report, verbose: bool) -> None:
    """Many nodes as one block: each family once, each distinct finding once, with the nodes that it is true of."""
    for line in page.wrap(f"rlcheck {report.version} {report.command} on {span(report.nodes)}", 0):
        page.write(page.paint(line, "bold"))
    _first(page, report)
    page.write()
    problems = {(f.id, f.node) for f in report.checks if f.is_problem and f.status in ("fail", "warn")}
    families = fold(report)
    title_width = max((len(family.title) for family in families), default=0)
    for family in families:
        symbol = page.paint(f"[{page.symbols[family.status]}]", STYLES.get(family.status, ""))
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


def _finding(page: Page, finding: Finding, verbose: bool, causes: tuple[str, ...], on: str = "") -> None:
    """One finding; `on` says of which nodes it is true, "" where there is one alone."""
    tail = f" ({on})" if on else ""
    if finding.is_problem and causes and not verbose:
        # One cause, one story: what follows from it is named, and shown in full once the cause is fixed (or with -v).
        _one_line(page, finding, f"{failure(finding)} (fix {' and '.join(causes)} first){tail}")
    elif finding.is_problem and finding.status in ("fail", "warn"):
        _problem(page, finding, verbose, on)
    elif finding.is_problem:
        _one_line(page, finding, f"{finding.title}: {finding.message}{tail}")
    elif finding.waived is not None:
        _one_line(page, finding, f"{failure(finding)} ({waiver_text(finding)}){tail}")
    elif verbose:
        time = f" [{finding.duration_ms:.1f} ms]" if finding.duration_ms >= 1 else ""
        _one_line(page, finding, f"{finding.title}: {finding.message}{time}{tail}")


def _exhibit(page: Page, exhibit: Exhibit) -> None:
    page.gap()
    for line in page.wrap(exhibit.title, 0):
        page.write(page.paint(line, "bold"))
    columns = [page.plain(title) for title in exhibit.columns]
    rows = [[page.plain(cell) for cell in row] for row in exhibit.rows]
    for line in table_lines(columns, rows, page.width - 4 if page.width else 0):
        page.write(f"    {line}")
    for note in exhibit.notes:
        page.wrapped("    ", note, 4)


def _unknown(page: Page, findings: list[Finding], tail: str = "") -> None:
    """Write what could not run, a line for each reason: one silent tool leaves dozens of checks without an answer."""
    by_reason: dict[str, list[Finding]] = {}
    for finding in findings:
        silent = finding.message.startswith(_SILENT) and sum(f.message.startswith(_SILENT) for f in findings) > 1
        by_reason.setdefault(_NOT_WRITTEN if silent else finding.message, []).append(finding)
    for reason, group in by_reason.items():
        more = f" (and {len(group) - 1} more checks)" if len(group) > 1 else ""
        _one_line(page, group[0], f"{group[0].title}{more}: {reason}{tail}")


def _one_line(page: Page, finding: Finding, text: str) -> None:
    symbol = page.paint(page.symbols[finding.status], STYLES.get(finding.status, ""))
    page.wrapped(f"    {symbol} {page.plain(finding.id)}  ", text, 14)


def _problem(page: Page, finding: Finding, verbose: bool, on: str = "") -> None:
    symbol = page.paint(page.symbols[finding.status], STYLES[finding.status])
    head = page.paint(f"{page.plain(finding.id)}  ", "bold")
    lines = page.wrap(finding.headline, 14)
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
    _labelled(page, "source", f"rlcheck explain {finding.playbook or finding.id}")
    page.write()


def _details(page: Page, details: list[str], verbose: bool) -> None:
    shown = details if verbose else details[:_MAX_DETAILS]
    for detail in shown:
        page.wrapped(" " * (6 + _LABEL_WIDTH) + ("- " if page.ascii else "• "), detail, 8 + _LABEL_WIDTH)
    if len(shown) < len(details):
        _labelled(page, "", f"… {len(details) - len(shown)} more (-v shows them)")


def _facts(finding: Finding) -> Iterator[tuple[str, str]]:
    if finding.expected:
        yield "expected", finding.expected
        yield "found", finding.found
    elif finding.message != finding.headline:
        yield "found", finding.message
    generic = f"expected {finding.expected}, found {finding.found}"
    if finding.expected and finding.message != generic:
        yield "that is", finding.message


def _labelled(page: Page, label: str, text: str) -> None:
    page.wrapped(f"      {label:{_LABEL_WIDTH}}", text, 6 + _LABEL_WIDTH)


def _fixes(page: Page, finding: Finding, verbose: bool) -> None:
    shown = finding.fixes if verbose else finding.fixes[:_MAX_FIXES]
    for index, fix in enumerate(shown):
        _fix(page, "fix" if index == 0 else "or", fix)
    if len(shown) < len(finding.fixes):
        _labelled(page, "", f"({len(finding.fixes) - len(shown)} more in the playbook)")


def _fix(page: Page, label: str, fix: Fix) -> None:
    note, title = caution(fix), fix.title
    if title.startswith("Or "):  # the label says so, or nothing is before it
        title = title[3:] if title[4:5].isupper() else title[3:4].upper() + title[4:]
    _labelled(page, label, f"{title} ({note})" if note else title)
    for line in fix.command.splitlines():
        # Never cut: a command must survive being copied, however long it is.
        page.write(" " * (8 + _LABEL_WIDTH) + page.typed(line))


def _footer(page: Page, report: Report, verbose: bool) -> None:
    page.gap()
    for note in report.notes:
        page.wrapped("note: ", note, 6)
    seconds = f" in {report.duration_ms / 1e3:.2f} s" if report.duration_ms else ""
    page.wrapped("", f"{counts(report)}{seconds}", 0)
    page.wrapped("", verdict(report), 0)
    if report.summary.info and not verbose:
        page.wrapped("", f"-v shows the {report.summary.info} worth knowing and everything that passed", 0)
    page.wrapped("next: ", report.next.words, 6)
