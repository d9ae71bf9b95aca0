"""The report as SARIF 2.1.0: every check is a rule, every problem a result."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

from rlcheck.finding import Finding, Next, Report
from rlcheck.report.wording import clean, said, waiver_text

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"fail": "error", "error": "error", "warn": "warning", "unknown": "note", "info": "note"}
# Where a finding points at a place in a file, its evidence says so: file:line:column.
_PLACE = re.compile(r"(.+):(\d+):(\d+)")
_MAX_PLACES = 20
_KINDS = {"pass": "pass", "skip": "notApplicable", "unknown": "open", "info": "informational"}


def render_sarif(report: Report) -> str:
    """One run; rules are listed whether or not they fired."""
    rules = {finding.id: finding for finding in report.checks}
    ids = sorted(rules)
    results = [_result(finding, ids.index(finding.id)) for finding in report.checks]
    return document(report.version, [_rule(rules[id]) for id in ids], results, report.exit_code, report.next)


def document(
    version: str, rules: list[dict[str, Any]], results: list[dict[str, Any]], exit_code: int, after: Next
) -> str:
    """The whole file of one run; AFTER: what to do next."""
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "rlcheck", "version": version, "rules": rules}},
        "invocations": [{"executionSuccessful": True, "exitCode": exit_code}],
        "results": results,
        "properties": {"next": {"action": after.action, "nodes": list(after.nodes), "why": clean(after.why)}},
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _rule(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "shortDescription": {"text": clean(finding.title)},
        "help": {"text": f"rlcheck explain {finding.playbook or finding.id}"},
        "properties": {"family": finding.family, "playbook": finding.playbook},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": index,
        "message": {"text": clean(said(finding)) or finding.title},
        "locations": _locations(finding),
    }
    if finding.status in _KINDS:
        result |= {"kind": _KINDS[finding.status], "level": "none"}
    else:
        result |= {"kind": "fail", "level": LEVELS[finding.status]}
    if finding.waived is not None:
        result["suppressions"] = [{"kind": "external", "justification": clean(waiver_text(finding))}]
    return result


def _locations(finding: Finding) -> list[dict[str, Any]]:
    """The places in files that the finding names, each once, on its node; without any, the node alone."""
    logical = {"logicalLocations": [{"name": clean(finding.node) or "node", "kind": "resource"}]}
    places = dict.fromkeys(_places(finding))
    return [{"physicalLocation": physical(*place), **logical} for place in list(places)[:_MAX_PLACES]] or [logical]


def _places(finding: Finding) -> list[tuple[str, int, int]]:
    """File, line and column of each piece of evidence that has them."""
    found = (_PLACE.fullmatch(item.source) for item in finding.evidence)
    return [(match[1], int(match[2]), int(match[3])) for match in found if match is not None and int(match[2]) > 0]


def physical(file: str, line: int, column: int = 0) -> dict[str, Any]:
    """A place in FILE; line and column count from 1, 0 is none."""
    region = {"startLine": line, **({"startColumn": column} if column > 0 else {})}
    return {"artifactLocation": {"uri": quote(clean(file))}, "region": region}
