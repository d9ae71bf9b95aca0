"""What the checks of the engine say beyond their pairs of cases."""

from __future__ import annotations

import pytest

from rlcheck import judging
from rlcheck.check import Check
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import Case, RolloutFacts
from rlcheck.finding import Finding
from rlcheck.playbook import Library
from tests.checks.rollout import cases

CHECKS = family_checks("ROL")

LIBRARY = Library()
BY_ID = {check.id: check for check in CHECKS}


def judged(id: str, facts: Facts) -> Finding:
    check: Check = BY_ID[id]
    return judging.judge(facts, (check,), LIBRARY)[0]


FIRES = [(id, facts) for id, several in cases.OTHER_FIRES.items() for facts in several]
QUIET = [(id, facts) for id, several in cases.OTHER_QUIET.items() for facts in several]


@pytest.mark.parametrize(("id", "facts"), FIRES, ids=[id for id, _ in FIRES])
def test_other_cases_fire(id: str, facts: Facts) -> None:
    assert judged(id, facts).status in {"fail", "warn", "info"}


@pytest.mark.parametrize(("id", "facts"), QUIET, ids=[id for id, _ in QUIET])
def test_other_cases_stay_quiet(id: str, facts: Facts) -> None:
    assert judged(id, facts).status in {"pass", "skip"}


def test_the_first_error_is_named_not_its_consequence() -> None:
    found = judged("ROL001", cases.CASES["ROL001"][0])
    assert cases.OOM in found.message
    assert "root cause above" not in found.message


def test_an_engine_that_only_others_can_start_is_unknown() -> None:
    found = judged("ROL001", cases.broken("config", "unsupported", "the engine of this config is sglang"))
    assert found.status == "unknown"


def test_nothing_judged_is_no_pass() -> None:
    untried = Case(name="end of sequence", expected="", found="none of 8 answers ended", judged=False)
    assert judged("ROL004", cases.engine(stops=known((untried,)))).status == "info"


def test_without_an_answer_nothing_passes() -> None:
    failed = cases.broken("engine start", "crash", "RuntimeError: no")
    statuses = {check.id: judged(check.id, failed).status for check in CHECKS}
    assert {id for id, status in statuses.items() if status == "pass"} == set()


def test_an_empty_section_is_judged() -> None:
    assert all(judged(check.id, Facts(rollout=known(RolloutFacts()))).status != "error" for check in CHECKS)
