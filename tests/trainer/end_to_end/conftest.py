"""Runs that several tests look at: each is made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.trainer.end_to_end.runs import SMALL, Run, Started, rltrain, training

STEPS = 8
SAVE_FREQ = 3
SHORT = (
    *SMALL,
    f"trainer.total_training_steps={STEPS}",
    f"trainer.save_freq={SAVE_FREQ}",
    "trainer.test_freq=2",
    "trainer.max_actor_ckpt_to_keep=5",
    "trainer.verify_weight_sync=true",
)
"""A short PPO run with checkpoints, whose syncs are all proven by checksums."""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs lie."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def toy_ppo(place: Path) -> Run:
    """The recipe as it is."""
    directory = place / "toy-ppo"
    return rltrain(directory, *training(directory, "toy-ppo"), timeout_s=300)


@pytest.fixture(scope="session")
def short(place: Path) -> Run:
    """A short run on two training ranks, never interrupted."""
    directory = place / "short"
    return rltrain(directory, *training(directory, "toy-ppo", *SHORT)).succeeded()


@pytest.fixture(scope="session")
def interrupted(place: Path) -> Run:
    """The same, ended by Ctrl-C after its third step; a copy, as it will be gone on with."""
    directory = place / "again"
    started = Started(directory, *training(directory, "toy-ppo", *SHORT))
    started.wait_for_step(SAVE_FREQ, timeout_s=120)
    started.interrupt()
    run = started.finish(timeout_s=60)
    kept = place / "interrupted"
    shutil.copytree(directory, kept)
    return Run(kept, run.code, run.out, run.err, run.wall_s)


@pytest.fixture(scope="session")
def resumed(place: Path, interrupted: Run) -> Run:
    """The interrupted run, gone on with to its end."""
    directory = place / "again"
    return rltrain(directory, *training(directory, "toy-ppo", *SHORT, "trainer.resume_mode=auto")).succeeded()


@pytest.fixture(scope="session")
def one_rank(place: Path, short: Run) -> Run:
    """Gone on with from the short run's first checkpoint, by one training rank instead of two."""
    directory = place / "one-rank"
    values = ("trainer.num_cpu_ranks=1", f"trainer.resume_mode={short.checkpoint(SAVE_FREQ)}")
    return rltrain(directory, *training(directory, "toy-ppo", *SHORT, *values)).succeeded()
