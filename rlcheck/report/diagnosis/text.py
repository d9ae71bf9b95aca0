"""A diagnosis on a terminal: the verdict first, then why, found, verify, fix and source."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TextIO

from rlcheck.diagnose.hang.graph import ranks_words
from rlcheck.diagnose.lines import read_line
from rlcheck.diagnose.model import Confirmation, Diagnosis, LogLine, Quote, Unknown
from rlcheck.facts.hang import Hang
from rlcheck.report.diagnosis.report import (
    DiagnosisReport,
    culprit_words,
    more_of,
    notes_of,
    nothing_found,
    place,
    raised_words,
    sureness,
    verdict,
    was_read,
    where,
)
from rlcheck.report.pages.page import STYLES, Page
from rlcheck.report.wording import caution

_LABEL = 10
_INDENT = 4 + _LABEL
_MAX_QUOTES = 3
_MAX_WAITS = 4
_MAX_REMARKS = 3
_WIDEST_QUOTE = 300
_MAX_ROWS = 3
_VERDICTS = {"confirmed": "pass", "ruled out": "skip", "open": "unknown"}


def render_text(report: DiagnosisReport, out: TextIO, *, verbose: bool = False, ascii_only: bool = False) -> None:
    """Write the report for a reader at a terminal or behind a pipe."""
    page = Page(out, ascii_only)
    _found(page, report, verbose)
    if report.silent:
        status, colour = ("unknown", "magenta") if report.open else ("pass", "green")
        symbol = page.paint(f"[{page.symbols[status]}]", colour)
        page.wrapped(f"{symbol} ", nothing_found(report), 4)
    _remarks(page, report.remarks, verbose)
    _footer(page, report)


def render_news(report: DiagnosisReport, out: TextIO, *, verbose: bool = False, ascii_only: bool = False) -> None:
    """Write the diagnoses alone, and an empty line: more may follow."""
    page = Page(out, ascii_only)
    _found(page, report, verbose)
    page.write()


def render_end(report: DiagnosisReport, out: TextIO, *, verbose: bool = False, ascii_only: bool = False) -> None:
    """Write what comes below the diagnoses, which were shown one by one."""
    page = Page(out, ascii_only)
    _remarks(page, report.remarks, verbose)
    _footer(page, report)


def _found(page: Page, report: DiagnosisReport, verbose: bool) -> None:
    if report.hang is not None:
        _hang(page, report.hang, verbose)
    if report.unknown is not None:
        _unknown(page, report.unknown)
    seen: set[int] = set()
    for found in report.diagnoses:
        page.gap()
        if found.incident in seen and not verbose:
            _lower(page, found)
        else:
            _diagnosis(page, found, verbose)
        seen.add(found.incident)


def _hang(page: Page, hang: Hang, verbose: bool) -> None:
    _head(page, "fail", f"The job stands still: {hang.said}")
    page.write()
    for number, one in enumerate(hang.culprits):
        _labelled(page, "" if number else "found", culprit_words(one))
        for frame in one.stack[1:] if verbose else ():
            page.wrapped(" " * (_INDENT + 2), frame, _INDENT + 4)
    shown = hang.waits if verbose else hang.waits[:_MAX_WAITS]
    for number, wait in enumerate(shown):
        target = f" waits for {ranks_words(wait.waits_for)}" if wait.waits_for else " is"
        _labelled(page, "" if number else "waits", f"rank {wait.rank}{target} in {wait.call}")
    if len(shown) < len(hang.waits):
        _labelled(page, "", f"and {len(hang.waits) - len(shown)} more (-v shows them)")
    for number, step in enumerate(hang.steps):
        _labelled(page, "" if number else "fix", step)


def _diagnosis(page: Page, found: Diagnosis, verbose: bool) -> None:
    _head(page, found.status, found.title + where(found.evidence))
    page.write()
    _labelled(page, "why", found.cause)
    _labelled(page, "", sureness(found))
    for number, confirmation in enumerate(found.confirmations):
        _labelled(page, "" if number else "facts", _confirmed(page, confirmation))
    _quotes(page, found.evidence if verbose else found.evidence[:_MAX_QUOTES], found.seen)
    if found.consequences:
        _labelled(page, "then", "; ".join(found.consequences))
    _verify(page, found)
    _fixes(page, found)
    for number, source in enumerate(found.sources if verbose else found.sources[:1]):
        _labelled(page, "" if number else "source", source.url)
    if more := more_of(found):
        _labelled(page, "" if found.sources else "source", more)


def _head(page: Page, status: str, text: str) -> None:
    lines = page.wrap(text, 4)
    page.write(f"{page.paint(f'[{page.symbols[status]}]', STYLES[status])} {page.paint(lines[0], 'bold')}")
    for line in lines[1:]:
        page.write(" " * 4 + page.paint(line, "bold"))


def _label(page: Page, label: str) -> str:
    return f"    {page.paint(f'{label:{_LABEL}}', 'bold')}" if label else " " * _INDENT


def _labelled(page: Page, label: str, text: str) -> None:
    page.wrapped(_label(page, label), text, _INDENT)


def _confirmed(page: Page, confirmation: Confirmation) -> str:
    symbol = page.symbols[_VERDICTS[confirmation.verdict]]
    on = f" on {confirmation.node}" if confirmation.node else ""
    by = "" if confirmation.verdict == "open" else "by "
    return f"{symbol} {confirmation.verdict} {by}{confirmation.check}{on}: {confirmation.message}"


def _quotes(page: Page, quotes: Sequence[Quote], seen: str) -> None:
    for number, quote in enumerate(quotes):
        # The place of the first one is said above; `seen` says more only where it was seen more than once.
        about = place(quote) if number else seen if "times" in seen else ""
        label = _label(page, "" if number else "found")
        if about:
            page.wrapped(label, about, _INDENT)
        for line in _quoted(page, quote):
            page.write((" " * _INDENT if about or number else label) + line)
            about = about or " "


def _quoted(page: Page, quote: Quote) -> Iterator[str]:
    """The lines of `quote`, each in a few rows; of a long one, what its launcher has put before it is left out."""
    width = max(24, page.width - _INDENT - 2) if page.width else _WIDEST_QUOTE
    for line in quote.text:
        text = page.typed(line.expandtabs(4)).rstrip()
        message = read_line(LogLine(0, text), 0, 0).text
        if len(text) > width and len(message) < len(text):
            text = f"... {message}"
        text = cut(text, min(_WIDEST_QUOTE, _MAX_ROWS * width))
        for row in textwrap.wrap(text, width, break_on_hyphens=False) or [""]:
            yield f"| {row}"


def cut(text: str, width: int) -> str:
    """TEXT in WIDTH characters: of a longer one the middle is left out, since both ends may say what matters."""
    text = " ".join(text.splitlines())
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 5]} ... {text[-tail:].lstrip()}"


def _verify(page: Page, found: Diagnosis) -> None:
    arrow = "-> " if page.ascii else "→ "
    for number, step in enumerate(found.verify):
        lines = step.run.strip().splitlines() or [""]
        page.write(_label(page, "" if number else "verify") + page.typed(lines[0]))
        for line in lines[1:]:
            page.write(" " * _INDENT + page.typed(line))
        page.wrapped(" " * (_INDENT + 2) + arrow, step.expect, _INDENT + 2 + len(arrow))


def _fixes(page: Page, found: Diagnosis) -> None:
    for number, fix in enumerate(found.fixes, 1):
        note = caution(fix)
        label = _label(page, "fix" if number == 1 else "")
        page.wrapped(f"{label}{number}. ", f"{fix.title} ({note})" if note else fix.title, _INDENT + 3)
        for line in fix.command.splitlines():
            # Never cut: a command must survive being copied, however long it is.
            page.write(" " * (_INDENT + 5) + page.typed(line))


def _lower(page: Page, found: Diagnosis) -> None:
    """Write one that ranks below another of its incident: what it is, and why it is here."""
    why = "follows from the above" if found.echo else f"fits the same lines less well; confidence: {found.confidence}"
    _head(page, "info", found.title + where(found.evidence))
    page.wrapped(" " * 4, f"{why}. {found.cause}", 4)
    if more := more_of(found):
        page.wrapped(" " * 4, more, 4)


def _unknown(page: Page, unknown: Unknown) -> None:
    _head(page, "unknown", "An error that no playbook knows" + where(unknown.evidence))
    page.write()
    _quotes(page, unknown.evidence, "")
    _labelled(page, "why", "This is the first failure in what was read. What caused it cannot be told from it.")
    if unknown.raised is not None:
        _labelled(page, "raised", raised_words(unknown.raised))
    for number, hint in enumerate(unknown.hints):
        _labelled(page, "" if number else "collect", f"- {hint}")


def _remarks(page: Page, remarks: Sequence[str], verbose: bool) -> None:
    shown = remarks if verbose else remarks[:_MAX_REMARKS]
    if shown:
        page.gap()
    for remark in shown:
        page.wrapped(
            f"{page.paint(page.symbols['info'], 'cyan')} ", f"no error, though it may look like one: {remark}", 2
        )
    if len(shown) < len(remarks):
        page.write(f"  and {len(remarks) - len(shown)} more of the kind (-v shows them)")


def _footer(page: Page, report: DiagnosisReport) -> None:
    notes = notes_of(report)
    if not report.silent or notes:
        page.gap()
    for note in notes:
        page.wrapped("note: ", note, 6)
    if not report.silent:
        _counts(page, report)
    page.wrapped("next: ", report.next.words, 6)


def _counts(page: Page, report: DiagnosisReport) -> None:
    page.wrapped("", f"{was_read(report)}; {verdict(report)}", 0)
    if report.more:
        what = "diagnosis ranks lower or only follows" if report.more == 1 else "diagnoses rank lower or only follow"
        page.wrapped("", f"{report.more} more {what} from what is shown: --all", 0)
    for hint in report.hints:
        page.wrapped("", hint, 0)
