"""A verdict for monitoring: Prometheus' text format for node_exporter's textfile collector, a status line for Nagios.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4)
and https://nagios-plugins.org/doc/guidelines.html (state, text, performance data, exit codes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

import msgspec

from rlcheck.finding import ACTIONS, Next, Report
from rlcheck.report.wording import in_a_line, said

OK, WARNING, CRITICAL, UNKNOWN = range(4)
"""Exit codes of a Nagios plug-in."""
_STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_MOST_CHARACTERS = 600
_MOST_OF_ONE = 240
"""Characters of a Nagios line, and of the problem in it; NRPE before version 3 cuts all of it at 1024 bytes."""
_HELP = {
    "rlcheck_info": "1, with the version of rlcheck that wrote this file.",
    "rlcheck_exit_code": "Exit code of the command: 0 healthy, 1 a check failed, 2 it could not be judged.",
    "rlcheck_findings": "Number of findings by status.",
    "rlcheck_problem": "1 for each finding that failed, warned or could not be judged, and is not waived.",
    "rlcheck_next": "1 for what to do next, 0 for the other actions.",
    "rlcheck_next_node": "1 for each node to leave out at the next start.",
    "rlcheck_collected_timestamp_seconds": "Unix time at which the facts were collected that were judged.",
    "rlcheck_duration_seconds": "Seconds that the examination took.",
}
"""The same words in every file: node_exporter refuses two texts for one metric."""


class Problem(msgspec.Struct, frozen=True):
    """What wants attention: its check or playbook, status (fail, error, warn or unknown), node, title; `line`: all."""

    id: str
    status: str
    node: str
    headline: str
    line: str


class Monitored(msgspec.Struct, frozen=True):
    """What monitoring reads of a report. counts: findings by status; times are "" or 0 where there is none."""

    command: str
    version: str
    exit_code: int
    next: Next
    counts: Mapping[str, int]
    problems: tuple[Problem, ...]
    collected_at: str = ""
    duration_ms: float = 0.0

    @property
    def state(self) -> int:
        """The Nagios state: what failed, then what warned, then what could not be judged."""
        if self.exit_code == 1 or self.counts.get("fail"):
            return CRITICAL
        if self.counts.get("warn"):
            return WARNING
        return UNKNOWN if self.exit_code or self.next.action != "go" else OK


def monitored(report: Report) -> Monitored:
    """What monitoring reads of REPORT, whose problems come in order of what to fix first."""
    s = report.summary
    counts = {"pass": s.passed, "info": s.info, "warn": s.warn, "fail": s.fail, "skip": s.skip, "unknown": s.unknown,
              "error": s.error, "waived": s.waived}  # fmt: skip
    problems = tuple(
        Problem(f.id, f.status, f.node, f.headline,
                in_a_line(f) if f.status in ("fail", "warn") else f"{f.id}: {said(f)}")
        for f in report.checks if f.is_problem
    )  # fmt: skip
    return Monitored(report.command, report.version, report.exit_code, report.next, counts, problems,
                     report.collected_at, report.duration_ms)  # fmt: skip


def for_monitoring(found: Monitored, format: str) -> str:
    """What FORMAT, prometheus or nagios, makes of it."""
    return render_prometheus(found) if format == "prometheus" else render_nagios(found)


def render_prometheus(found: Monitored) -> str:
    """The whole file; each series once, as the collector refuses a second one."""
    series = dict(_series(found))
    lines: list[str] = []
    for metric, help_text in _HELP.items():
        mine = [(labels, value) for (name, labels), value in series.items() if name == metric]
        if mine:
            lines += [f"# HELP {metric} {help_text}", f"# TYPE {metric} gauge"]
            lines += [f"{metric}{{{_labels(labels)}}} {round(value, 3)}" for labels, value in mine]
    return "\n".join(lines) + "\n"


Labels = tuple[tuple[str, str], ...]


def _series(found: Monitored) -> Iterator[tuple[tuple[str, Labels], float]]:
    own = ("command", found.command)
    yield ("rlcheck_info", (own, ("version", found.version))), 1
    yield ("rlcheck_exit_code", (own,)), found.exit_code
    for status, count in found.counts.items():
        yield ("rlcheck_findings", (own, ("status", status))), count
    for one in found.problems:
        labels = (own, ("id", one.id), ("status", one.status), ("node", one.node), ("headline", one.headline))
        yield ("rlcheck_problem", labels), 1
    for action in ACTIONS:
        yield ("rlcheck_next", (own, ("action", action))), int(action == found.next.action)
    for node in found.next.nodes:
        yield ("rlcheck_next_node", (own, ("node", node))), 1
    try:
        at = datetime.fromisoformat(found.collected_at)
    except ValueError:
        at = None
    if at is not None and at.tzinfo is not None:
        yield ("rlcheck_collected_timestamp_seconds", (own,)), at.timestamp()
    if found.duration_ms:
        yield ("rlcheck_duration_seconds", (own,)), found.duration_ms / 1e3


def _labels(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def render_nagios(found: Monitored) -> str:
    """The status line with its performance data: how many findings there are of each kind that counts."""
    first, *more = found.problems or (None,)
    words = found.next.why if first is None else first.line
    words = words if len(words) <= _MOST_OF_ONE else words[:_MOST_OF_ONE] + " …"
    words += f" ({first.node})" if first is not None and first.node else ""
    if more:
        words += f"; {len(more)} more"
    if found.next.action != "go":
        words += "; next: " + " ".join((found.next.action, *found.next.nodes))
    return status_line(found.state, words, _performance(found))


def status_line(state: int, words: str, performance: str = "") -> str:
    """A line of Nagios: a bar begins performance data, so that none may be in WORDS."""
    text = " ".join(words.replace("|", "/").split())
    text = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + " …"
    return f"RLCHECK {_STATES[state]} - {text}{f' | {performance}' if performance else ''}\n"


def _performance(found: Monitored) -> str:
    """`label=value;warn;crit;min`: 0 is the most that is no warning, or nothing critical."""
    limits = {"fail": ";;0;0", "error": ";0;;0", "warn": ";0;;0", "unknown": ";0;;0"}
    words: Iterable[str] = (f"{name}={found.counts.get(name, 0)}{limit}" for name, limit in limits.items())
    time = f" time={found.duration_ms / 1e3:.3f}s" if found.duration_ms else ""
    return " ".join(words) + time
