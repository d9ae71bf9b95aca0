"""Reports and facts hold to their schemas: our own published ones, Jenkins' for JUnit, OASIS' for SARIF."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from rlcheck.finding import Report
from tests.conftest import ROOT, rlcheck
from tests.report.samples import EMPTY, HEALTHY, REPORT, finding, on_two_nodes, report, shown, spoiled
from tests.tools.schemas import DIRECTORY, facts_schema

SCHEMAS = ROOT / "tests" / "fixtures" / "schemas"
REPORTS = {
    "everything": REPORT,
    "healthy": HEALTHY,
    "empty": EMPTY,
    "two nodes": on_two_nodes(),
    "slow": report(*(finding(f"SYS{n:03}", "pass", "m", duration_ms=1234567.891) for n in range(1, 4))),
    "no words": spoiled(REPORT, lambda text: ""),
    "hostile": spoiled(REPORT, lambda text: f"\x00\x1b[31m<&\"']]>\ufffe\u202e{text}"),
}


@cache
def junit() -> Any:
    """The schema of JUnit's XML."""
    import xmlschema

    return xmlschema.XMLSchema(str(SCHEMAS / "junit-10.xsd"))


@cache
def sarif_schema() -> Any:
    """The schema of SARIF."""
    return jsonschema.Draft4Validator(json.loads((SCHEMAS / "sarif-2.1.0.json").read_text()))


def validator(name: str) -> Any:
    schema = facts_schema() if name == "facts" else json.loads((DIRECTORY / name).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", REPORTS)
def test_json_holds_to_the_published_schema(name: str) -> None:
    validator("report.schema.json").validate(json.loads(shown(REPORTS[name], "json")))


def test_the_schema_can_say_no() -> None:
    document = json.loads(shown(REPORT, "json"))
    document["checks"][0]["status"] = "bad"
    with pytest.raises(jsonschema.ValidationError):
        validator("report.schema.json").validate(document)


def test_every_promised_field_is_there() -> None:
    document = json.loads(shown(REPORT, "json"))
    assert document["schema_version"]
    promised = {
        "id",
        "title",
        "status",
        "message",
        "expected",
        "found",
        "evidence",
        "node",
        "playbook",
        "fixes",
        "duration_ms",
    }
    for check in document["checks"]:
        assert promised <= set(check)


def test_what_the_command_prints_holds_to_the_schemas(tmp_path: Path) -> None:
    validator("report.schema.json").validate(json.loads(rlcheck("env", "--format", "json").out))
    facts = rlcheck("collect").out
    validator("facts").validate(json.loads(facts))
    (tmp_path / "facts.json").write_text(facts)
    from_file = rlcheck("env", "--facts", tmp_path / "facts.json", "--format", "json")
    validator("report.schema.json").validate(json.loads(from_file.out))


@pytest.mark.parametrize("name", REPORTS)
def test_junit(name: str) -> None:
    junit().validate(shown(REPORTS[name], "junit"))


@pytest.mark.parametrize("name", REPORTS)
def test_sarif(name: str) -> None:
    document = json.loads(shown(REPORTS[name], "sarif"))
    sarif_schema().validate(document)
    run = document["runs"][0]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        # The schema cannot say it, the standard does (3.27.10): a level belongs to a failure.
        assert (result["kind"] == "fail") or result["level"] == "none"


def cases(report: Report) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(shown(report, "junit"))
    return {case.get("name", "").split()[0]: case for case in root.iter("testcase")}


def outcome(case: ElementTree.Element) -> str:
    return next((child.tag for child in case), "passed")


def test_junit_counts_and_outcomes() -> None:
    suite = ElementTree.fromstring(shown(REPORT, "junit")).find("testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "8", "failures": "1", "errors": "1", "skipped": "3"}  # fmt: skip
    assert {id: outcome(case) for id, case in cases(REPORT).items()} == {
        "SYS001": "failure", "ENV001": "error", "ENV002": "system-out", "GPU003": "skipped", "SYS009": "skipped",
        "NCL004": "system-out", "SYS002": "passed", "GPU001": "skipped"}  # fmt: skip


def test_junit_fails_where_strict_fails() -> None:
    import msgspec

    strict = cases(msgspec.structs.replace(REPORT, strict=True))
    assert {id for id, case in strict.items() if outcome(case) == "failure"} == {"SYS001", "ENV002", "GPU003"}


def test_sarif_levels_and_suppressions() -> None:
    results = {result["ruleId"]: result for result in json.loads(shown(REPORT, "sarif"))["runs"][0]["results"]}
    assert {id: (result["kind"], result["level"]) for id, result in results.items()} == {
        "SYS001": ("fail", "error"),
        "ENV001": ("fail", "error"),
        "ENV002": ("fail", "warning"),
        "GPU003": ("open", "none"),
        "SYS009": ("fail", "error"),
        "NCL004": ("informational", "none"),
        "SYS002": ("pass", "none"),
        "GPU001": ("notApplicable", "none"),
    }
    assert results["SYS009"]["suppressions"][0]["justification"] == "waived: wanted here, until 2027-01-31"
    assert "suppressions" not in results["SYS001"]
