"""Weight sync broken on purpose: the numbers show it, and `trainer.verify_weight_sync` stops the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rltrain.core.errors import RunFailure
from tests.trainer.end_to_end.matrix.stage import Played, Stage
from tests.trainer.end_to_end.matrix.workers import SCALED

pytestmark = pytest.mark.timeout(400)
DIFF = "training/rollout_probs_diff_mean"
LOG_DIFF = "training/rollout_log_probs_diff_mean"
GRPO = "algorithm.adv_estimator=grpo"
VERIFY = "trainer.verify_weight_sync=true"
HEAD = "lm_head.weight"


@pytest.fixture
def mended(stage: Stage) -> Iterator[Stage]:
    """The stage; its engine is well again afterwards."""
    yield stage
    stage.break_sync("")
    stage.break_publisher("")


def test_a_healthy_sync_is_verified(mended: Stage, grpo: Played) -> None:
    played = mended.play(GRPO, VERIFY)
    assert max(step[DIFF] for step in played.steps) <= 5e-6
    assert max(step[LOG_DIFF] for step in played.steps) <= 1e-5
    # Verifying changes nothing.
    assert [played.hashes(step) for step in (1, 2)] == [grpo.hashes(step) for step in (1, 2)]


@pytest.mark.parametrize("fault", ["stale", "scaled"])
def test_a_broken_sync_shows_in_the_log_probs(mended: Stage, grpo: Played, fault: str) -> None:
    mended.break_sync(fault)
    played = mended.play(GRPO)
    broken, healthy = played.steps[1], grpo.steps[1]
    assert broken[DIFF] >= 100 * max(healthy[DIFF], 5e-6)
    assert broken[LOG_DIFF] >= 100 * max(healthy[LOG_DIFF], 1e-5)


def test_verification_names_the_tensor_before_anything_is_generated(mended: Stage) -> None:
    mended.break_sync("scaled")
    played = Played()
    with pytest.raises(RunFailure, match=rf"weight sync of version 0: engine 0: 1 of \d+ weights differ.* '{SCALED}'"):
        mended.play(GRPO, VERIFY, played=played)
    assert played.batches == []


def test_verification_finds_weights_that_never_arrived(mended: Stage) -> None:
    mended.play(GRPO)
    mended.break_sync("stale")
    with pytest.raises(RunFailure, match=r"weight sync of version 0: engine 0: \d+ of \d+ weights differ"):
        mended.play(GRPO, VERIFY)


def test_verification_finds_a_tensor_that_the_publisher_sends_stale(mended: Stage) -> None:
    """What was sent is what the engine holds, and neither is what the actor has become: its own parameters say so."""
    mended.break_publisher(HEAD)
    played = Played()
    with pytest.raises(RunFailure, match=rf"weight sync of version 1: engine 0: 1 of \d+ weights differ.* '{HEAD}'"):
        mended.play(GRPO, VERIFY, played=played)
    assert len(played.batches) == 1
