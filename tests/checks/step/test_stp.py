"""Findings of a proof: which link, where, explained by what; later links wait for the first."""

from __future__ import annotations

import pytest

from rlcheck.checks import family_checks
from rlcheck.facts.step import LINKS, Link
from tests.checks.step.cases import AGAIN, CASES, CHANGED, GPUS, HEALTHY, IDS, differs, proof, proven, replayed

BY_ID = {check.id: check for check in family_checks("STP")}


def test_every_link_has_one_check() -> None:
    assert set(BY_ID) == {"STP001", *IDS, *AGAIN}
    assert len(IDS) == len(LINKS)


@pytest.mark.parametrize("id", sorted(CASES))
def test_a_difference_fails_and_health_passes(id: str) -> None:
    fires, quiet = CASES[id]
    assert BY_ID[id].judge(fires).status == ("warn" if id in ("STP022", "STP024") else "fail")
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
    assert set(BY_ID["STP016"].caused_by) == {"STP020", *(id for id in BY_ID if id < "STP016")}
    assert set(BY_ID["STP020"].caused_by) == {"STP001", "STP002", "STP003", "STP004"}
    assert BY_ID["STP001"].judge(HEALTHY).status == "pass"


def test_what_the_run_has_not_is_skipped() -> None:
    link = Link(name="values", status="absent", said="the run has no critic")
    verdict = BY_ID["STP010"].judge(proven(proof(1, link), proof(2, link)))
    assert (verdict.status, verdict.message) == ("skip", "the run has no critic")
    assert BY_ID["STP010"].judge(proven(proof(1, link), proof(2))).status == "pass"


def test_a_step_that_runs_otherwise_names_the_first_quantity() -> None:
    verdict = BY_ID["STP021"].judge(replayed("outputs", "gradient", "answers"))
    assert verdict.found == "step 2: outputs differs first: outputs: 3 of 512 differ"
    assert verdict.details == ("where: row 3, token 2, row 9, token 1", "explained by: goes away at temperature 0.7",
                               "largest difference: 0.5", "a note")  # fmt: skip


def test_another_version_is_named_and_no_failure() -> None:
    facts = replayed("gradient", changed=CHANGED)
    assert BY_ID["STP021"].judge(facts).status == "skip"
    assert "other than in the recorded step: torch 2.9.0 -> 2.9.1" in BY_ID["STP022"].judge(facts).details


def test_answers_alone_are_no_fault_of_training() -> None:
    assert BY_ID["STP021"].judge(replayed("answers")).status == "pass"
    assert BY_ID["STP024"].judge(replayed("gradient", "answers")).status == "info"
    assert BY_ID["STP024"].judge(replayed("answers", changed=CHANGED)).status == "info"


def test_the_device_that_differs_is_named() -> None:
    verdict = BY_ID["STP023"].judge(replayed("gradient", devices=GPUS))
    assert verdict.found.startswith("GPU 2 differ from GPU 0; of GPU 2 gradient first")
    assert verdict.params == {"device": "GPU 2"}
    assert BY_ID["STP021"].judge(replayed("gradient", devices=GPUS)).status == "skip"


def test_run_again_is_not_recomputed() -> None:
    assert BY_ID["STP001"].judge(replayed()).status == "skip"
