"""What monitoring reads: Prometheus' own parser takes every report, Nagios every line, and each says the verdict."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlcheck.finding import Next, Report
from rlcheck.report.diagnosis.monitors import monitored as monitored_answer
from rlcheck.report.diagnosis.report import make_report
from rlcheck.report.monitors import CRITICAL, OK, UNKNOWN, WARNING, monitored
from rlcheck.report.wording import clean
from tests.diagnose.answers import ANSWER, STRANGE
from tests.diagnose.answers import HEALTHY as HEALTHY_LOG
from tests.diagnose.answers import shown as shown_answer
from tests.report.samples import HEALTHY, REPORT, finding, report, shown, spoiled
from tests.report.test_hostile import HOSTILE
from tests.report.test_schemas import REPORTS

LINE = re.compile(
    r"RLCHECK (OK|WARNING|CRITICAL|UNKNOWN) - [^|\n]+\|( (fail|error|warn|unknown|time)=[0-9.]+s?[0-9;]*)+\n"
)

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(text: str) -> Series:
    """Every series of an exposition, by name and labels; each is there once, and has words and a type."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type == "gauge", family.name
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    assert len(found) == sum(bool(line) and line[0] != "#" for line in text.split("\n")), "a line was not understood"
    return found


def value(found: Series, name: str, **labels: str) -> float:
    (one,) = (
        number for (metric, own), number in found.items() if metric == name and labels.items() <= dict(own).items()
    )
    return one


@pytest.mark.parametrize("name", REPORTS)
def test_the_parser_of_prometheus_reads_every_report(name: str) -> None:
    made = REPORTS[name]
    found = series(shown(made, "prometheus"))
    assert value(found, "rlcheck_exit_code") == made.exit_code
    assert value(found, "rlcheck_next", action=made.next.action) == 1
    assert sum(number for (metric, _), number in found.items() if metric == "rlcheck_next") == 1


def test_metrics_say_what_the_report_says() -> None:
    found = series(shown(REPORT, "prometheus"))
    assert value(found, "rlcheck_findings", status="fail") == REPORT.summary.fail
    assert value(found, "rlcheck_findings", status="waived") == 1
    shm = {"id": "SYS001", "status": "fail", "node": "gpu-01", "headline": "/dev/shm is too small"}
    assert value(found, "rlcheck_problem", **shm) == 1
    assert not any(("id", "SYS009") in labels for _, labels in found), "what is waived is no problem"
    assert value(found, "rlcheck_collected_timestamp_seconds") == 1795222923
    assert value(found, "rlcheck_duration_seconds") == pytest.approx(0.312)
    without = msgspec.structs.replace(REPORT, next=Next("restart-without", ("gpu-07", "gpu-09")))
    nodes = {
        dict(labels)["node"] for metric, labels in series(shown(without, "prometheus")) if metric == "rlcheck_next_node"
    }
    assert nodes == {"gpu-07", "gpu-09"}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_label_comes_back_as_it_was(name: str) -> None:
    """Except what no terminal and no parser may see, which every renderer takes away."""
    headline = f'a\\n"b\\\n{HOSTILE[name]}\\'
    spoilt = report(finding("SYS001", "fail", "m", headline=headline, node='n"\\'))
    found = series(shown(spoilt, "prometheus"))
    assert value(found, "rlcheck_problem", headline=clean(headline), node='n"\\') == 1


def states() -> dict[str, tuple[Report, int]]:
    ok, warn = finding("SYS002", "pass", "m"), finding("SYS003", "warn", "m")
    dark, bad = finding("SYS004", "unknown", "could not look"), finding("SYS001", "fail", "m")
    go, fix = Next("go"), Next("fix")
    return {
        "healthy": (report(ok, next=go), OK),
        "warned": (report(ok, warn, next=go), WARNING),
        "could not look": (report(ok, dark, next=fix), UNKNOWN),
        "warned, and could not look": (report(warn, dark, next=fix), WARNING),
        "failed": (report(ok, warn, dark, bad, next=fix), CRITICAL),
        "nothing was judged": (report(), UNKNOWN),
        "a link of a chain is dark": (report(ok, next=fix), UNKNOWN),
        "hang's doubt": (msgspec.structs.replace(report(ok, next=go), exit_code=2), UNKNOWN),
        "--strict counts": (msgspec.structs.replace(report(ok, dark, next=fix), exit_code=1), CRITICAL),
        "waived": (report(ok, msgspec.structs.replace(bad, waived=REPORT.checks[4].waived), next=go), OK),
    }  # fmt: skip


@pytest.mark.parametrize("name", states())
def test_the_state_of_nagios(name: str) -> None:
    made, state = states()[name]
    assert monitored(made).state == state
    line = shown(made, "nagios")
    assert line.startswith(f"RLCHECK {('OK', 'WARNING', 'CRITICAL', 'UNKNOWN')[state]} - ")
    assert LINE.fullmatch(line), line
    assert f"fail={made.summary.fail};;0;0" in line


@pytest.mark.parametrize("name", [*REPORTS, *HOSTILE])
def test_nagios_gets_one_line(name: str) -> None:
    made = REPORTS[name] if name in REPORTS else spoiled(REPORT, lambda text: text[:9] + HOSTILE[name] * 50)
    line = shown(made, "nagios")
    assert LINE.fullmatch(line), line
    assert len(line) < 800


def test_a_long_problem_does_not_push_out_what_to_do() -> None:
    long = report(finding("SYS001", "fail", "m" * 5000, found="f" * 5000), next=Next("restart-without", ("gpu-07",)))
    assert "next: restart-without gpu-07 |" in shown(long, "nagios")


def test_a_line_says_what_to_do() -> None:
    line = shown(msgspec.structs.replace(REPORT, next=Next("restart-without", ("gpu-07",))), "nagios")
    assert "SYS001: /dev/shm is too small" in line
    assert "; 3 more; next:" in line
    assert "next: restart-without gpu-07" in line
    assert "next:" not in shown(msgspec.structs.replace(HEALTHY, next=Next("go")), "nagios")


@pytest.mark.parametrize(("answer", "state"), [(ANSWER, CRITICAL), (STRANGE, CRITICAL), (HEALTHY_LOG, OK)])
def test_diagnoses_have_both(answer: Any, state: int) -> None:
    made = make_report(answer)
    assert monitored_answer(made).state == state
    assert LINE.fullmatch(shown_answer(made, "nagios"))
    found = series(shown_answer(made, "prometheus"))
    assert value(found, "rlcheck_exit_code", command="diagnose") == made.exit_code
    problems = {dict(labels)["id"] for metric, labels in found if metric == "rlcheck_problem"}
    assert problems == {one.id for one in monitored_answer(made).problems}
