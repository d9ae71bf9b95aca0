"""What the checks of a reward function say beyond their pairs of cases."""

from __future__ import annotations

import pytest

from rlcheck.checks import family_checks
from rlcheck.facts.document import Facts
from tests.checks.reward import cases

BY_ID = {check.id: check for check in family_checks("RWD")}


@pytest.mark.parametrize("id", sorted(cases.CASES))
def test_a_fault_is_found_and_health_passes(id: str) -> None:
    fires, quiet = cases.CASES[id]
    assert BY_ID[id].judge(fires).status == ("warn" if id in ("RWD006", "RWD010") else "fail")
    assert BY_ID[id].judge(quiet).status == "pass"


@pytest.mark.parametrize(
    ("id", "facts", "status"),
    [("RWD005", cases.IN_THREADS_ALONE, "warn"), ("RWD009", cases.HEDGES, "warn"),
     ("RWD008", cases.SAME_FOR_ALL, "unknown"), ("RWD007", cases.SAME_FOR_ALL, "skip"),
     ("RWD008", cases.FORM_ALONE, "info"), ("RWD008", cases.OTHER_TYPE, "warn"), ("RWD002", cases.FAILED, "unknown")],
)  # fmt: skip
def test_what_is_not_certain_does_not_fail(id: str, facts: Facts, status: str) -> None:
    assert BY_ID[id].judge(facts).status == status


def test_a_shortcut_of_a_few_rows_is_chance() -> None:
    rare = cases.FULL.__class__(text="`0` as the answer", num_rows=6, num_full=1, mean=0.17)
    assert BY_ID["RWD009"].judge(cases.reward(shortcuts=cases.known((rare,)))).status == "pass"
