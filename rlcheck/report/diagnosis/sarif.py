"""A diagnosis as SARIF 2.1.0: every playbook that answers is a rule, every problem a result at its line of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlcheck.diagnose.model import Diagnosis, Quote
from rlcheck.report.diagnosis.report import DiagnosisReport, culprit_words, more_of, source_words
from rlcheck.report.sarif import LEVELS, document, physical
from rlcheck.report.wording import clean

_UNKNOWN = "unknown"


def render_sarif(report: DiagnosisReport) -> str:
    """One run; a rule for each playbook that is in it."""
    rules = {found.id: _rule(found) for found in report.diagnoses}
    ids = [*rules]
    results = [_result(found, ids.index(found.id)) for found in report.diagnoses]
    if report.unknown is not None:
        words = "An error that no playbook knows"
        rules = {_UNKNOWN: {"id": _UNKNOWN, "shortDescription": {"text": words}}}
        text = ". ".join((words, *(f"collect: {hint}" for hint in report.unknown.hints)))
        results = [_at(_UNKNOWN, 0, text, "error", report.unknown.evidence)]
    if report.hang is not None:
        rules["hang"] = {"id": "hang", "shortDescription": {"text": "The job stands still"}}
        text = ". ".join((report.hang.said, *map(culprit_words, report.hang.culprits), *report.hang.steps))
        results.insert(0, _at("hang", len(rules) - 1, text, "error", ()))
    return document(report.version, [*rules.values()], results, report.exit_code, report.next)


def _rule(found: Diagnosis) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": found.id,
        "shortDescription": {"text": clean(found.title)},
        "help": {"text": more_of(found) or source_words(found)},
    }
    return rule


def _result(found: Diagnosis, index: int) -> dict[str, Any]:
    level = "note" if found.echo else LEVELS[found.status]
    fixes = (f"{fix.title}: {fix.command}" if fix.command else fix.title for fix in found.fixes[:1])
    text = " ".join((found.cause, *(f"fix: {fix}" for fix in fixes)))
    properties = {"confidence": found.confidence, "incident": found.incident, "echo": found.echo}
    return {**_at(found.id, index, text or found.title, level, found.evidence), "properties": properties}


def _at(id: str, index: int, text: str, level: str, quotes: Sequence[Quote]) -> dict[str, Any]:
    return {
        "ruleId": id,
        "ruleIndex": index,
        "message": {"text": clean(text) or id},
        "kind": "fail",
        "level": level,
        "locations": [_location(quote) for quote in quotes],
    }


def _location(quote: Quote) -> dict[str, Any]:
    file = "stdin" if quote.file == "-" else quote.file or "log"
    found = physical(file, max(1, quote.line))
    found["region"]["snippet"] = {"text": clean("\n".join(quote.text))}
    writer = "/".join(f"{kind} {name}" for kind, name in (("node", quote.node), ("rank", quote.rank)) if name)
    logical = {"logicalLocations": [{"name": clean(writer), "kind": "resource"}]} if writer else {}
    return {"physicalLocation": found, **logical}
