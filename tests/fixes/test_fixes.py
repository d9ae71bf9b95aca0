"""Every case of the table: the fault is found, the fix is run as printed, and the doctor finds the fault no longer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fixes.configs import CONFIGS
from tests.fixes.logs import LOGS
from tests.fixes.packages import PACKAGES
from tests.fixes.scene import Case
from tests.fixes.shells import SHELLS
from tests.fixes.variables import VARIABLES

CASES = (*VARIABLES, *PACKAGES, *CONFIGS, *SHELLS, *LOGS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fix_ends_the_fault(case: Case, tmp_path: Path) -> None:
    before, after = case.play(tmp_path)
    assert before in ("fail", "warn")
    assert after in case.after


def test_the_table_is_broad() -> None:
    kinds = Counter(case.kind for case in CASES)
    assert len(CASES) >= 60
    assert len(kinds) >= 20
    assert max(kinds.values()) <= 6, kinds.most_common(3)
