"""What monitoring reads of a diagnosis."""

from __future__ import annotations

from collections import Counter

from rlcheck.report.diagnosis.report import DiagnosisReport, best_of_each
from rlcheck.report.monitors import Monitored, Problem


def monitored(report: DiagnosisReport) -> Monitored:
    """A hang first, then each problem of the logs; an error that no playbook knows has failed, too."""
    problems = [
        Problem(one.id, one.status, next((quote.node for quote in one.evidence if quote.node), ""), one.title,
                f"{one.id}: {one.title}")
        for one in best_of_each(report.diagnoses) if one.status in ("fail", "warn")
    ]  # fmt: skip
    if report.unknown is not None:
        problems.insert(0, _failed("unknown", "an error that no playbook knows"))
    if report.hang is not None:
        problems.insert(0, _failed("hang", "the job stands still", report.hang.said))
    counts = Counter(one.status for one in problems)
    counts["unknown"] = len(report.notes)
    return Monitored(report.command, report.version, report.exit_code, report.next,
                     {status: counts[status] for status in ("fail", "warn", "unknown")}, tuple(problems))  # fmt: skip


def _failed(id: str, headline: str, more: str = "") -> Problem:
    return Problem(id, "fail", "", headline, f"{headline}: {more}" if more else headline)
