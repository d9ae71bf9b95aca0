"""The report as JUnit XML: a test suite for each node, a test case for each check."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree

from rlcheck.finding import Finding, Next, Report
from rlcheck.report.wording import clean, said, waiver_text


def render_junit(report: Report) -> str:
    """What failed is a failure (with --strict: what warned, too), what broke an error, what did not apply skipped."""
    suites: list[ElementTree.Element] = []
    for node in report.nodes:
        findings = [finding for finding in report.checks if finding.node == node]
        cases = [_case(finding, report.strict) for finding in findings]
        seconds = sum(finding.duration_ms for finding in findings) / 1e3
        name = clean(node) or "node"
        suites.append(suite(name, cases, seconds, timestamp=report.collected_at[:19], hostname=name))
    return document(report.command, suites, report.next)


def document(command: str, suites: Iterable[ElementTree.Element], after: Next) -> str:
    """The whole file of what COMMAND found; what to do AFTER is a property of each suite."""
    suites = list(suites)
    for one in suites:
        properties = ElementTree.Element("properties")
        for name, value in (("next", after.action), ("next.nodes", " ".join(after.nodes)), ("next.why", after.why)):
            ElementTree.SubElement(properties, "property", name=name, value=clean(value))
        one.insert(0, properties)
    root = ElementTree.Element("testsuites", name=f"rlcheck {command}")
    root.extend(suites)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def suite(name: str, cases: list[ElementTree.Element], seconds: float, **more: str) -> ElementTree.Element:
    """A test suite with its counts. MORE: further attributes."""
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": sum(case.find("error") is not None for case in cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    written = {kind: str(count) for kind, count in counts.items()}
    element = ElementTree.Element("testsuite", {"name": name, **written, "time": f"{seconds:.3f}", **more})
    element.extend(cases)
    return element


def _case(finding: Finding, strict: bool) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=f"rlcheck.{finding.family}",
        name=f"{finding.id} {clean(finding.title)}",
        time=f"{finding.duration_ms / 1e3:.3f}",
    )
    fails = finding.status == "fail" or (strict and finding.status in ("warn", "unknown"))
    # The name of a case is the rule, which stays the same from run to run; its message is what broke it.
    message = clean(said(finding))
    if finding.waived is not None:
        ElementTree.SubElement(case, "skipped", message=clean(waiver_text(finding)))
    elif finding.status == "error":
        ElementTree.SubElement(case, "error", message=message, type="error")
    elif fails:
        element = ElementTree.SubElement(case, "failure", message=message, type=finding.status)
        element.text = clean("\n".join((*finding.details, *(fix.command or fix.title for fix in finding.fixes))))
    elif finding.status in ("skip", "unknown"):
        ElementTree.SubElement(case, "skipped", message=message)
    elif finding.status in ("warn", "info"):
        output = ElementTree.SubElement(case, "system-out")
        output.text = f"{finding.status}: {message}"
    return case
