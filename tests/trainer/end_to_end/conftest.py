"""Runs that several tests look at: each is made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.trainer.end_to_end.runs import SMALL, Run, Started, anew, rltrain, training
from tests.trainer.failures.scene import Watched

TOY_STEPS = 50
"""Greedy answers earn 0.9 after 40; the recipe goes on to 90, for seeds that take longer."""
TOY = (f"trainer.total_training_steps={TOY_STEPS}", "actor_rollout_ref.actor.optim.lr_scheduler_type=constant")
STEPS = 6
STOP_AFTER = 3
LLAMA = (
    "~toy.model",
    "toy.model={model_type: llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, "
    "num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 64, tie_word_embeddings: false}",
)
RICH = (
    *SMALL,
    *LLAMA,
    "data.train_batch_size=32",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.shuffle=true",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.rollout.n=2",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.horizon=640",
    "algorithm.kl_ctrl.target_kl=0.001",
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=2",
    "trainer.test_freq=2",
    "trainer.max_actor_ckpt_to_keep=1",
)
"""A short run with all that a resume has to bring back: critic, reference, KL controller, schedule, shuffled rows."""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs lie."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def toy_ppo(place: Path) -> Run:
    """The recipe, ended sooner: the learning rate has no time to fall. Nothing of it may outlive it."""
    directory = anew(place / "toy-ppo")
    return Watched(directory, *training(directory, "toy-ppo", *TOY)).finish(timeout_s=840).succeeded()


@pytest.fixture(scope="session")
def whole(place: Path) -> Run:
    """A short run on two training ranks, never interrupted."""
    directory = anew(place / "whole")
    return rltrain(directory, *training(directory, "toy-ppo", *RICH)).succeeded()


@pytest.fixture(scope="session")
def interrupted(place: Path) -> Run:
    """The same, ended by Ctrl-C after its third step; a copy, as it will be gone on with."""
    directory = anew(place / "again")
    started = Started(directory, *training(directory, "toy-ppo", *RICH))
    started.wait_for_step(STOP_AFTER, timeout_s=600)
    started.interrupt()
    run = started.finish(timeout_s=300)
    kept = place / "interrupted"
    shutil.copytree(directory, kept)
    return Run(kept, run.code, run.out, run.err, run.wall_s)


@pytest.fixture(scope="session")
def resumed(place: Path, interrupted: Run) -> Run:
    """The interrupted run, gone on with to its end."""
    directory = place / "again"
    return rltrain(directory, *training(directory, "toy-ppo", *RICH, "trainer.resume_mode=auto")).succeeded()


@pytest.fixture(scope="session")
def one_rank(place: Path, interrupted: Run) -> Run:
    """The interrupted run, gone on with by one training rank instead of two."""
    directory = place / "one-rank"
    last = interrupted.checkpoint(interrupted.steps[-1]["step"])
    values = ("trainer.num_cpu_ranks=1", f"trainer.resume_mode={last}")
    return rltrain(directory, *training(directory, "toy-ppo", *RICH, *values)).succeeded()
