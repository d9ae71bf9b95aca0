"""`toy-add-sft`, then `toy-add-grpo` from what it has learnt: the recipes for a GPU at the size of a CPU.

At full size and beside supervised training that goes on: `tests/bench/gpu/learn.sh`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.end_to_end.runs import Run, anew, column, rltrain, training

pytestmark = pytest.mark.timeout(1800)

ONE_RANK = ("trainer.num_cpu_ranks=1", "trainer.logger=[console]")
SHORT = ("trainer.total_epochs=2", "trainer.save_freq=256", "trainer.test_freq=-1", "trainer.val_before_train=false")
SFT_STEPS = 256


@pytest.fixture(scope="module")
def supervised(place: Path) -> Run:
    """What the demonstrations teach, in part."""
    directory = anew(place / "add-sft")
    arguments = ("sft", "toy-add-sft", f"trainer.default_local_dir={directory}", *ONE_RANK, *SHORT)
    return rltrain(directory, *arguments).succeeded()


def reinforced(place: Path, start: Run, steps: int, *values: str) -> Run:
    directory = anew(place / f"add-grpo-{steps}")
    model = f"actor_rollout_ref.model.path={start.checkpoint(SFT_STEPS)}"
    limits = (f"trainer.total_training_steps={steps}", "trainer.save_freq=-1", *values)
    return rltrain(directory, *training(directory, "toy-add-grpo", model, *ONE_RANK, *limits)).succeeded()


def test_answers_that_are_paid_for_become_more(supervised: Run, place: Path) -> None:
    run = reinforced(place, supervised, 6, "actor_rollout_ref.rollout.name=hf", "trainer.test_freq=6")
    before, after = column(run.steps, "val/reward/mean")
    paid = column(run.steps, "critic/score/mean")
    print(f"toy-add: pass@1 {before:.3f} -> {after:.3f} in {supervised.wall_s + run.wall_s:.0f} s, train {paid}")
    assert 0.1 < before <= 0.5
    assert after > before + 0.05
    assert max(column(run.steps, "val/reward/best_constant")) < 0.05
    assert not (run.directory / "toy" / "model").exists()


@pytest.mark.long
def test_the_twin_learns_to_carry(supervised: Run, place: Path) -> None:
    run = reinforced(place, supervised, 40)
    rewards = column(run.steps, "val/reward/mean")
    assert rewards[0] <= 0.5
    assert rewards[-1] >= 0.9
