"""What estimators, losses and rewards did in their first step is proven: no difference in any of their capsules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import rlcheck
from tests.trainer.end_to_end.matrix.stage import Played, Stage

pytestmark = pytest.mark.timeout(1800)
KEPT = 8
"""At most so many of the runs that other tests have played, evenly drawn: each proof takes some seconds."""


def test_every_first_step_is_proven(stage: Stage, grpo: Played) -> None:
    assert grpo.steps
    found = stage.capsules()
    drawn = found[:: max(len(found) // KEPT, 1)]
    done = rlcheck("step", *drawn, timeout=1200)
    wrong = {str(capsule.parents[1].name): differing(capsule) for capsule in drawn}
    assert not any(wrong.values()), wrong
    assert done.code == 0, done.out


def differing(capsule: Path) -> list[str]:
    links = json.loads((capsule / "proof.json").read_text())["links"]
    return [f"{link['name']}: {link['said']} {link.get('causes')}" for link in links if link["status"] == "differs"]
