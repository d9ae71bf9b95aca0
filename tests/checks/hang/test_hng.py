"""Who is named: the one at the end of the waiting, and nobody where that one goes on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rlcheck.checks import family_checks
from rlcheck.diagnose.hang.live import judge
from rlcheck.facts.document import Facts
from rlcheck.facts.hang import HangFacts, Process, Thread
from tests.checks.hang import cases
from tests.checks.hang.cases import CASES

BY_ID = {check.id: check for check in family_checks("HNG")}


LOGGER = Process(
    pid=901,
    role="logger",
    looks=tuple((Thread(tid=901, frames=(f"job/log.py:{line} in write",)),) for line in (3, 4, 5)),
)


def looked(facts: Facts) -> HangFacts:
    assert facts.hang.value is not None
    return facts.hang.value


@pytest.mark.parametrize("id", sorted(CASES))
def test_a_hang_fails_and_a_job_that_goes_on_passes(id: str) -> None:
    fires, quiet = CASES[id]
    assert BY_ID[id].judge(fires).status == "fail"
    assert BY_ID[id].judge(quiet).status == "pass"


@pytest.mark.parametrize(
    ("facts", "culprit"),
    [
        (cases.STOPPED, (2, "", "stopped")),
        (cases.MISSING, (2, "", "gone")),
        (cases.BEHIND, (2, "", "behind")),
        (cases.LOCKED, (2, "", "gil")),
        (cases.OTHER, (2, "", "mismatch")),
        (cases.REWARD, (None, "reward", "stuck")),
        (cases.FAR, (None, "server at 10.0.0.9:8000", "stuck")),
    ],
)
def test_the_end_of_the_waiting_is_named(facts: Facts, culprit: tuple[object, ...]) -> None:
    hang = judge(looked(facts)).hang
    assert hang is not None
    assert [(one.rank, one.role, one.kind) for one in hang.culprits] == [culprit]
    assert {wait.rank for wait in hang.waits} >= {0, 1, 3}


def test_one_that_computes_or_moves_is_not_accused() -> None:
    for facts in (cases.MOVES, cases.with_odd(cases.rank(2, cases.ASLEEP, cpu_share=0.9))):
        judged = judge(looked(facts))
        assert judged.hang is None
        assert judged.said.startswith("the job waits for rank 2, which goes on")


def test_what_cannot_be_seen_is_no_all_clear() -> None:
    blind = cases.job(*(cases.rank(number, looks=()) for number in range(4)))
    assert judge(looked(blind)).doubt == "no stack of any process could be seen"
    one_blind = cases.with_odd(cases.rank(2, looks=()))
    assert "its stack cannot be seen" in judge(looked(one_blind)).doubt
    asleep = cases.job(*(cases.rank(number, cases.ASLEEP) for number in range(4)))
    assert judge(looked(asleep)).doubt.startswith("nothing moved for 6 s")
    beside = cases.job(*(cases.rank(number, cases.ASLEEP) for number in range(4)), LOGGER)
    assert judge(looked(beside)).doubt.startswith("no rank moved for 6 s")
    elsewhere = Facts(hang=replace(cases.INSIDE.hang, value=replace(looked(cases.INSIDE), elsewhere=(4, 5))))
    assert "the other nodes" in judge(looked(elsewhere)).doubt
    assert BY_ID["HNG002"].judge(elsewhere).status == "unknown"
