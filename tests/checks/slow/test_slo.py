"""Each check of family SLO fires on its cases and stays quiet on a healthy step."""

from __future__ import annotations

import pytest

from rlcheck.checks import family_checks
from tests.checks.slow.cases import CASES, OTHER_FIRES, OTHER_QUIET

BY_ID = {check.id: check for check in family_checks("SLO")}


@pytest.mark.parametrize("id", sorted(BY_ID))
def test_it_fires_and_stays_quiet(id: str) -> None:
    fires, quiet = CASES[id]
    for facts in (fires, *OTHER_FIRES.get(id, ())):
        assert BY_ID[id].judge(facts).status in ("fail", "warn", "info")
    for facts in (quiet, *OTHER_QUIET.get(id, ())):
        assert BY_ID[id].judge(facts).status == "pass"
