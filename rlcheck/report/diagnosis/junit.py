"""A diagnosis as JUnit XML: a test case for each problem; for a healthy log, one that passed."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from rlcheck.diagnose.model import Diagnosis, Quote
from rlcheck.report.diagnosis.report import DiagnosisReport, culprit_words, nothing_found, place, where
from rlcheck.report.junit import document, suite
from rlcheck.report.wording import clean


def render_junit(report: DiagnosisReport) -> str:
    """An error is a failure, and so is a warning with --strict; what only follows from another is skipped."""
    cases = [_case(found, report.strict) for found in report.diagnoses]
    if report.unknown is not None:
        case = _test("unknown", "an error that no playbook knows")
        _failure(case, f"an error that no playbook knows{where(report.unknown.evidence)}", "unknown",
                 [*_quoted(report.unknown.evidence), *report.unknown.hints])  # fmt: skip
        cases = [case]
    if report.hang is not None:
        case = _test("hang", "the job stands still")
        lines = [*map(culprit_words, report.hang.culprits), *report.hang.steps]
        _failure(case, f"the job stands still: {report.hang.said}", "hang", lines)
        cases = [case, *cases]
    if not cases:
        cases = [_test("open" if report.open else "healthy", nothing_found(report))]
        if report.open:
            ElementTree.SubElement(cases[0], "skipped", message=clean("; ".join(report.notes)))
    return document(report.command, [suite("diagnose", cases, 0.0)], report.next)


def _test(id: str, words: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname="rlcheck.diagnose", name=clean(f"{id} {words}"), time="0.000")


def _case(found: Diagnosis, strict: bool) -> ElementTree.Element:
    case = _test(found.id, found.title)
    message = found.cause + where(found.evidence)
    if found.echo:
        ElementTree.SubElement(case, "skipped", message=clean(f"follows from another: {message}"))
    elif found.status == "fail" or (strict and found.status == "warn"):
        fixes = [fix.command or fix.title for fix in found.fixes]
        _failure(case, message, found.status, [*_quoted(found.evidence), *fixes])
    else:
        ElementTree.SubElement(case, "system-out").text = clean(f"{found.status}: {message}")
    return case


def _failure(case: ElementTree.Element, message: str, kind: str, lines: Sequence[str]) -> None:
    element = ElementTree.SubElement(case, "failure", message=clean(message), type=kind)
    element.text = clean("\n".join(lines))


def _quoted(quotes: Sequence[Quote]) -> list[str]:
    return [line for quote in quotes for line in (place(quote), *(f"| {text}" for text in quote.text))]
