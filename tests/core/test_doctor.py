"""Choosing checks, and which probes they need."""

from __future__ import annotations

import time

import pytest

from rlcheck.doctor import clinic
from rlcheck.doctor.clinic import Doctor, SelectionError
from rlcheck.doctor.settings import IgnoreEntry, Settings
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.families import FAMILIES
from rlcheck.finding import Report
from rlcheck.measure.machine.registry import PROBES, Probe
from rlcheck.playbook import Library
from tests.core.samples import FACTS, failing, sample

DOCTOR = Doctor(
    checks=(sample("AAA001"), failing("AAA002"), sample("BBB001", needs=("platform.kernel", "plugins.acme"))),
    probes=(*PROBES, Probe("acme", "acme.probe"), Probe("other", "other.probe")),
    families={"AAA": "First", "BBB": "Second"},
    library=Library(()),
    notes=("a note",),
)


def ids(*wanted: str) -> list[str]:
    return [check.id for check in DOCTOR.select(wanted)]


def test_select_by_id_family_or_not_at_all() -> None:
    assert ids() == ["AAA001", "AAA002", "BBB001"]
    assert ids("AAA") == ["AAA001", "AAA002"]
    assert ids("BBB001", "AAA002") == ["AAA002", "BBB001"]
    assert ids("AAA", "AAA001", "AAA") == ["AAA001", "AAA002"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("AAA003", "did you mean AAA00"),
        ("BB001", "did you mean BBB001?"),
        ("", "`rlcheck list` names them all"),
        ("nonsense", "`rlcheck list` names them all"),
        ("\x1b[31m", "`rlcheck list` names them all"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(SelectionError) as caught:
        DOCTOR.select((name,))
    assert hint in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_lower_case_names_the_same_check_and_waives_it() -> None:
    assert DOCTOR.select(("aaa001", "bbb")) == DOCTOR.select(("AAA001", "BBB"))
    assert set(clinic.waived(DOCTOR, Settings(), ("aaa001",))[0]) == {"AAA001"}


def test_only_the_probes_that_are_needed() -> None:
    assert [probe.section for probe in DOCTOR.probes_for(DOCTOR.select(("AAA",)))] == ["platform", "environ"]
    assert [probe.section for probe in DOCTOR.probes_for(DOCTOR.checks)] == ["platform", "environ", "acme"]


def examine(
    *nodes: Facts, strict: bool = False, ignore: tuple[str, ...] = (), settings: Settings | None = None
) -> Report:
    return clinic.examine(
        DOCTOR,
        nodes,
        DOCTOR.checks,
        settings or Settings(),
        command="env",
        ignore=ignore,
        strict=strict,
        started=time.perf_counter(),
    )


def test_the_report_of_two_nodes() -> None:
    report = examine(FACTS, Facts(node="n2", collected_at="later"))
    assert report.nodes == ("n1", "n2")
    assert [(f.id, f.node, f.status) for f in report.checks] == [
        ("AAA002", "n1", "fail"),
        ("AAA002", "n2", "fail"),
        ("BBB001", "n2", "unknown"),
        ("AAA001", "n1", "pass"),
        ("AAA001", "n2", "pass"),
        ("BBB001", "n1", "pass"),
    ]
    assert (report.summary.fail, report.summary.passed, report.summary.unknown) == (2, 3, 1)
    assert report.exit_code == 1
    assert report.notes == ("a note",)
    assert [(line.family, line.node, line.status) for line in report.families] == [
        ("AAA", "n1", "fail"), ("BBB", "n1", "pass"), ("AAA", "n2", "fail"), ("BBB", "n2", "unknown")]  # fmt: skip


def test_strict_counts_what_could_not_be_made() -> None:
    healthy = Facts(node="n", plugins={"acme": known(1)})
    assert examine(healthy, ignore=("AAA002",)).exit_code == 0
    assert examine(healthy, ignore=("AAA002",), strict=True).exit_code == 1
    assert examine(healthy, ignore=("AAA002",), settings=Settings(strict=True)).exit_code == 1
    assert examine(healthy, ignore=("AAA002", "BBB001"), strict=True).exit_code == 0


def test_a_family_can_be_ignored() -> None:
    assert examine(FACTS, ignore=("AAA",)).exit_code == 0


def test_an_ignore_of_nothing_is_refused() -> None:
    with pytest.raises(SelectionError, match="AAA009"):
        examine(FACTS, ignore=("AAA009",))
    with pytest.raises(SelectionError, match="AAA008"):
        examine(FACTS, settings=Settings(ignore=(IgnoreEntry(id="AAA008"),)))


def test_the_real_doctor_is_whole() -> None:
    doctor = clinic.summon()
    assert set(doctor.families) >= set(FAMILIES)
    assert {check.family for check in doctor.checks} >= set(FAMILIES)
    sections = [probe.section for probe in doctor.probes]
    assert len(sections) == len(set(sections))
