"""Ctrl-C, a lost terminal and SIGTERM: while Ray starts, while the engine generates, while the actor learns, while it
is saved; to the controller, its process group, and every process of the run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rltrain.core.work import WorkFiles
from tests.trainer.end_to_end.runs import COMMAND, Run
from tests.trainer.failures.scene import Watched, arguments, checkpoints, planned

pytestmark = pytest.mark.timeout(900)
LONG = (
    "data.max_response_length=40",
    "actor_rollout_ref.rollout.ignore_eos=true",
    "actor_rollout_ref.rollout.n=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=512",
    "critic.ppo_micro_batch_size_per_gpu=512",
    "trainer.capsule_steps=[]",
)
"""1024 answers of 40 tokens: a generation that takes long enough to be met, and nothing between checkpoint and it."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signals") / "run"


@pytest.fixture(scope="module")
def in_generation(directory: Path) -> Run:
    """Ctrl-C as soon as step 1 is finished: the engine is at work on step 2."""
    run = Watched(directory, *arguments(directory, *LONG))
    run.wait_for_checkpoint(1)
    time.sleep(0.3)  # for the weights to arrive
    run.interrupt_group()
    return run.finish()


@pytest.fixture(scope="module")
def in_start_up(directory: Path, in_generation: Run) -> Run:
    """Gone on with, and the terminal lost while its workers are made."""
    run = Watched(directory, *arguments(directory, *LONG))
    run.wait_until(lambda: run.said("starting Ray: "), "Ray")
    run.wait_until(lambda: len(run.pids("rollout-0")) == 2, "the engine's process")
    run.hang_up()
    return run.finish()


@pytest.fixture(scope="module")
def in_update(directory: Path, in_start_up: Run) -> Run:
    """Gone on with, and SIGTERM to every process while the models learn from step 2."""
    scored = directory.with_name("scored")
    many = ("actor_rollout_ref.actor.ppo_epochs=5", "critic.ppo_epochs=5")
    run = Watched(directory, *arguments(directory, *LONG, *many, *planned(directory, step_2=str(scored))))
    run.wait_until(scored.exists, "the rewards of step 2")
    run.wait_until(lambda: _is_updating(directory), "an update")
    run.terminate_all()
    return run.finish()


@pytest.fixture(scope="module")
def in_saving(directory: Path) -> Run:
    """SIGTERM to every process, which comes twice, while step 1 is being saved."""
    directory = directory.with_name("saving")
    run = Watched(directory, *arguments(directory, "trainer.total_training_steps=99"))
    partial = directory / "checkpoints" / ".global_step_1.partial"
    run.wait_until(partial.exists, "the saving of step 1", poll_s=0.002)
    run.terminate_all()
    run.terminate_all()
    return run.finish()


@pytest.fixture(scope="module")
def under_timeout(in_saving: Run) -> Run:
    """Gone on with under `timeout`, which sends SIGTERM to its command and then to the group."""
    directory = in_saving.directory
    values = arguments(directory, "trainer.total_training_steps=99")
    run = Watched(directory, *values, program=("timeout", "900", *COMMAND))
    run.wait_for_checkpoint(len(checkpoints(directory)) + 1)
    run.terminate()
    return run.finish()


def _ended_in_order(run: Run) -> bool:
    """Whether no process had to be killed."""
    return "had to kill" not in run.out and "ending at once" not in run.out and run.err == ""


def _is_updating(directory: Path) -> bool:
    """Only updates have five epochs: more than the two micro batches of a pass that reads."""
    place = directory / "logs" / "train-0.work"
    return any(counts[1] > 2 for counts in WorkFiles({"update": [place]}).marks() if counts)


def test_ctrl_c_in_generation_drops_the_step(in_generation: Run) -> None:
    assert in_generation.code == 130
    assert _ended_in_order(in_generation)
    last = in_generation.out.splitlines()[-1]
    assert last.startswith("rltrain: stopped by SIGINT (generating responses). Saved up to step 1: go on with rltrain")
    assert [step["step"] for step in in_generation.steps] == [0, 1]
    assert in_generation.record["outcome"] == "interrupted"


def test_a_lost_terminal_in_start_up_leaves_everything_as_it_was(directory: Path, in_start_up: Run) -> None:
    assert in_start_up.code == 130
    assert in_start_up.err == ""
    assert "Saved up to step 1" in in_start_up.out.splitlines()[-1]
    assert "step 2/" not in in_start_up.out
    assert [step["step"] for step in in_start_up.steps] == [0, 1]


@pytest.mark.long
def test_sigterm_in_the_update_finishes_the_step_and_saves_it(directory: Path, in_update: Run) -> None:
    assert in_update.code == 130
    assert _ended_in_order(in_update)
    assert "'s update). Saved up to step 2: go on with" in in_update.out
    assert [step["step"] for step in in_update.steps] == [0, 1, 2]
    assert checkpoints(directory) == ["global_step_1", "global_step_2"]


def test_sigterm_to_every_process_in_saving_leaves_that_step(in_saving: Run) -> None:
    assert in_saving.code == 130
    assert _ended_in_order(in_saving)
    assert "Saved up to step 1: go on with" in in_saving.out
    assert checkpoints(in_saving.directory)[0] == "global_step_1"


def test_timeout_ends_a_run_in_order(in_saving: Run, under_timeout: Run) -> None:
    assert under_timeout.code == 130
    assert _ended_in_order(under_timeout)
    assert "global_step_1 (step 1 of 99)" in under_timeout.out  # the run before could be gone on with
    saved = under_timeout.steps[-1]["step"]
    assert saved > 1
    assert f"Saved up to step {saved}: go on with" in under_timeout.out
