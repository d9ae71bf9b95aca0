"""Each check of family RES fires on its cases and stays quiet on healthy checkpoints."""

from __future__ import annotations

import pytest

from rlcheck.checks import family_checks
from tests.checks.resume.cases import CASES, OTHER_FIRES

BY_ID = {check.id: check for check in family_checks("RES")}


@pytest.mark.parametrize("id", sorted(BY_ID))
def test_it_fires_and_stays_quiet(id: str) -> None:
    fires, quiet = CASES[id]
    for facts in (fires, *OTHER_FIRES.get(id, ())):
        assert BY_ID[id].judge(facts).status in ("fail", "warn", "info")
    assert BY_ID[id].judge(quiet).status == "pass"
