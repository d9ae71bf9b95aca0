"""Findings of a proof: which link, where, explained by what; later links wait for the first."""

from __future__ import annotations

import pytest

from rlcheck.checks import family_checks
from rlcheck.facts.step import LINKS, Link
from tests.checks.step.cases import CASES, HEALTHY, IDS, differs, proof, proven

BY_ID = {check.id: check for check in family_checks("STP")}


def test_every_link_has_one_check() -> None:
    assert set(BY_ID) == {"STP001", *IDS}
    assert len(IDS) == len(LINKS)


@pytest.mark.parametrize("id", sorted(CASES))
def test_a_difference_fails_and_health_passes(id: str) -> None:
    fires, quiet = CASES[id]
    assert BY_ID[id].judge(fires).status == "fail"
    assert BY_ID[id].judge(quiet).status == "pass"


def test_a_difference_says_step_place_size_and_cause() -> None:
    verdict = BY_ID["STP008"].judge(
        proven(proof(1), proof(2, differs("old-log-probs")), proof(3, differs("old-log-probs")))
    )
    assert verdict.found == "step 2: old-log-probs: 3 of 512 differ; also in step 3"
    assert verdict.details == ("where: row 3, token 2, row 9, token 1", "explained by: goes away at temperature 0.7",
                               "largest difference: 0.5 nats; rounding explains 1e-06")  # fmt: skip


def test_what_could_not_be_judged_is_no_pass() -> None:
    link = Link(name="values", status="unknown", said="the critic's weights are not in the capsule")
    assert BY_ID["STP010"].judge(proven(proof(1, link))).status == "unknown"
    partly = BY_ID["STP010"].judge(proven(proof(1, link), proof(2)))
    assert partly.status == "pass"
    assert "not judged: step 1" in partly.message
    assert "not judged: values" in BY_ID["STP001"].judge(proven(proof(1, link))).message


def test_a_later_link_waits_for_the_first() -> None:
    assert BY_ID["STP016"].caused_by == tuple(sorted(id for id in BY_ID if id < "STP016"))
    assert BY_ID["STP001"].judge(HEALTHY).status == "pass"
