"""What the checks of a server say beyond their pairs of cases."""

from __future__ import annotations

import pytest

from rlcheck.checks import family_checks
from rlcheck.facts.document import Facts
from tests.checks.canary import cases

BY_ID = {check.id: check for check in family_checks("CAN")}


@pytest.mark.parametrize("id", sorted(cases.CASES))
def test_a_fault_fails_and_health_passes(id: str) -> None:
    fires, quiet = cases.CASES[id]
    assert BY_ID[id].judge(fires).status == "fail"
    assert BY_ID[id].judge(quiet).status == "pass"


@pytest.mark.parametrize(
    ("facts", "said"),
    [(cases.STALE, "has the weights of an earlier checkpoint"), (cases.ONE_TENSOR, "Some tensors of the server"),
     (cases.NO_LORA, "without the LoRA adapter"), (cases.FOREIGN, "")],
)  # fmt: skip
def test_what_the_weights_are_is_said(facts: Facts, said: str) -> None:
    verdict = BY_ID["CAN002"].judge(facts)
    assert verdict.status == "fail"
    assert said in verdict.headline
    assert BY_ID["CAN003"].judge(facts).status == "skip"
