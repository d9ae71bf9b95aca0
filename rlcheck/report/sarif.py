"""The report as SARIF 2.1.0: every check is a rule, every problem a result."""

from __future__ import annotations

import json
from typing import Any

from rlcheck.report.model import Finding, Report
from rlcheck.report.wording import clean, waiver_text

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"fail": "error", "error": "error", "warn": "warning", "unknown": "note", "info": "note"}
_KINDS = {"pass": "pass", "skip": "notApplicable", "unknown": "open", "info": "informational"}


def render_sarif(report: Report) -> str:
    """One run; rules are listed whether or not they fired."""
    rules = {finding.id: finding for finding in report.checks}
    ids = sorted(rules)
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": report.tool,
                "version": report.version,
                "rules": [_rule(rules[id]) for id in ids],
            }
        },
        "invocations": [{"executionSuccessful": True, "exitCode": report.exit_code}],
        "results": [_result(finding, ids.index(finding.id)) for finding in report.checks],
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
        "message": {"text": clean(finding.message) or finding.title},
        "locations": [{"logicalLocations": [{"name": clean(finding.node) or "node", "kind": "resource"}]}],
    }
    if finding.status in _KINDS:
        result |= {"kind": _KINDS[finding.status], "level": "none"}
    else:
        result |= {"kind": "fail", "level": _LEVELS[finding.status]}
    if finding.waived is not None:
        result["suppressions"] = [{"kind": "external", "justification": clean(waiver_text(finding))}]
    return result
