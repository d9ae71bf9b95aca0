"""Bounded staleness, on the real stack: no answer is too old, and nothing that was saved is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.end_to_end.runs import Run, column, rltrain
from tests.trainer.failures.scene import Watched, arguments

pytestmark = pytest.mark.timeout(1800)

STEPS, BOUND, GROUPS = 6, 2, 4
BOUNDED = (
    "actor_rollout_ref.hybrid_engine=false",
    f"algorithm.max_staleness={BOUND}",
    f"trainer.total_training_steps={STEPS}",
    "trainer.test_freq=3",
    "trainer.save_freq=2",
)
LONG = (
    f"data.train_batch_size={GROUPS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={GROUPS}",
    f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={GROUPS}",
    "toy.model.max_position_embeddings=1024",
    "data.max_response_length=1000",
    "actor_rollout_ref.rollout.ignore_eos=true",
)
"""Few answers, each written for longer than a step lasts and the engine takes to listen (twice `COLLECT_S`)."""


def held(run: Run) -> None:
    """RUN trained all its steps, and on no answer that is too old."""
    assert [record["step"] for record in run.steps if record["step"]] == list(range(1, STEPS + 1))
    trained = [record for record in run.steps if record["step"]]
    assert max(column(trained, "training/policy_staleness/max")) <= BOUND
    for record in trained:
        shares = [record[f"training/policy_staleness/tokens@{behind}"] for behind in range(BOUND + 1)]
        assert sum(shares) == pytest.approx(1)
        # The row counts as old as its oldest token, so that the tokens' mean is at most as much.
        mean = sum(behind * share for behind, share in enumerate(shares))
        assert mean <= record["training/policy_staleness/mean"] + 1e-6
        assert all(0 <= record[f"perf/{name}"] <= 1 for name in ("generation_overlap", "rollout_idle", "training_idle"))


def test_an_engine_killed_while_it_generates(tmp_path: Path) -> None:
    """It is started again with the newest weights; its answers begin again. Weights go in while others are written."""
    directory = tmp_path / "killed"
    run = Watched(directory, *arguments(directory, *BOUNDED, *LONG))
    run.wait_for_step(2, timeout_s=600)
    run.kill("rollout-0")
    done = run.finish().succeeded()
    held(done)
    assert done.out.count("restarting rollout-0") == 1
    assert max(column(done.steps, "training/policy_staleness/max")) == BOUND, "the bound is used"
    assert max(column(done.steps, "rollout/interrupted_answers")) > 0
    assert max(column(done.steps, "training/policy_staleness/tokens@0")) > 0


def test_a_signal_leads_to_a_checkpoint_and_the_rest_is_learnt_after_it(tmp_path: Path) -> None:
    directory = tmp_path / "stopped"
    run = Watched(directory, *arguments(directory, *BOUNDED, *LONG))
    run.wait_for_step(2, timeout_s=600)
    run.terminate()
    stopped = run.finish()
    assert stopped.code != 0
    last = stopped.steps[-1]["step"]
    assert 2 <= last < STEPS
    groups = json.loads((stopped.checkpoint(last) / "groups.json").read_text())
    # Of all that were asked for, everything but what each step learnt from.
    assert len(groups["groups"]) == groups["admitted"] - GROUPS * last
    resumed = rltrain(directory, *arguments(directory, *BOUNDED, *LONG)).succeeded()
    assert f"(step {last} of {STEPS})" in resumed.out
    held(resumed)
