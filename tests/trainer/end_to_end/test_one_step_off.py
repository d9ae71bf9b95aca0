"""One step off, on the real stack: a function of seed and step, gone on with to the bit, whatever dies."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.end_to_end.runs import Run, anew, column, repeatable, rltrain
from tests.trainer.failures.scene import Watched, arguments, message

pytestmark = pytest.mark.timeout(1800)

STEPS = 6
OFF = (
    "actor_rollout_ref.hybrid_engine=false",
    "algorithm.max_staleness=1",
    f"trainer.total_training_steps={STEPS}",
    "trainer.test_freq=3",
    "trainer.save_freq=2",
)
LONG = (
    "toy.model.max_position_embeddings=512",
    "data.max_response_length=300",
    "actor_rollout_ref.rollout.ignore_eos=true",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.total_training_steps=3",
)
"""Answers that take seconds, and nothing that waits for them at the end of a step: they are under way then."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("off")


@pytest.fixture(scope="module")
def whole(place: Path) -> Run:
    directory = anew(place / "whole")
    return rltrain(directory, *arguments(directory, *OFF)).succeeded()


@pytest.fixture(scope="module")
def stopped(place: Path) -> Run:
    """The same run, ended by a signal in its fourth step or later; a copy, as it will be gone on with."""
    directory = anew(place / "again")
    run = Watched(directory, *arguments(directory, *OFF))
    run.wait_for_step(3, timeout_s=600)
    run.terminate()
    done = run.finish()
    shutil.copytree(directory, place / "stopped")
    return Run(place / "stopped", done.code, done.out, done.err, done.wall_s)


def by_step(run: Run) -> dict[int, dict[str, Any]]:
    return {record["step"]: repeatable(record) for record in run.steps}


def test_answers_are_one_update_behind_from_the_second_step_on(whole: Run) -> None:
    assert column(whole.steps, "training/policy_staleness/max") == [0.0] + [1.0] * (STEPS - 1)
    assert column(whole.steps, "training/policy_staleness/mean") == [0.0] + [1.0] * (STEPS - 1)


def test_both_sides_say_how_long_they_were_idle(whole: Run) -> None:
    for name in ("perf/generation_overlap", "perf/rollout_idle", "perf/training_idle"):
        assert all(0 <= value <= 1 for value in column(whole.steps, name)), name
    # Generating takes a fraction of training here: it is over when its answers are wanted.
    assert max(column(whole.steps, "perf/generation_overlap")[1:]) > 0.5


def test_a_signal_leads_to_a_checkpoint_with_the_answers_to_come(stopped: Run) -> None:
    assert stopped.code != 0
    last = stopped.steps[-1]["step"]
    assert 3 <= last < STEPS
    assert (stopped.checkpoint(last) / "answers.npz").is_file()


def test_a_resumed_run_is_the_run_that_never_stopped(place: Path, whole: Run, stopped: Run) -> None:
    directory = place / "again"
    resumed = rltrain(directory, *arguments(directory, *OFF)).succeeded()
    assert stopped.steps[-1]["step"] < STEPS
    assert by_step(resumed) == by_step(whole)


@pytest.mark.long
def test_an_engine_killed_while_it_generates_ahead(tmp_path: Path) -> None:
    """It is started again; its answers are then from the weights of that moment."""
    directory = tmp_path / "killed"
    run = Watched(directory, *arguments(directory, *OFF, *LONG))
    run.wait_for_step(1, timeout_s=600)
    run.kill("rollout-0")
    done = run.finish().succeeded()
    assert done.out.count("restarting rollout-0") == 1
    assert "rollout rank 0" in done.out
    assert [record["step"] for record in done.steps] == [0, 1, 2, 3]
    assert max(column(done.steps, "training/policy_staleness/max")) <= 1


def test_one_of_two_engines_killed_while_they_generate_ahead(tmp_path: Path) -> None:
    directory = tmp_path / "one-of-two"
    two = ("actor_rollout_ref.rollout.num_replicas=2", "actor_rollout_ref.rollout.n_gpus_per_node=2")
    longer = ("toy.model.max_position_embeddings=1024", "data.max_response_length=900")  # each engine has half of them
    run = Watched(directory, *arguments(directory, *OFF, *LONG, *two, *longer))
    run.wait_for_step(1, timeout_s=600)
    run.kill("rollout-0")
    done = run.finish().succeeded()
    assert "requests go to rollout-1" in done.out
    assert done.out.count("restarting rollout-0") == 1
    assert [record["step"] for record in done.steps] == [0, 1, 2, 3]


@pytest.mark.long
def test_an_engine_that_hangs_while_it_generates_ahead_is_named(tmp_path: Path) -> None:
    """Whichever wait finds it: its answers are nearly all of its time, loading weights is the rest."""
    directory = tmp_path / "hung"
    longer = (
        "toy.model.max_position_embeddings=1024",
        "data.max_response_length=900",
        "trainer.total_training_steps=9",
    )
    limits = ("actor_rollout_ref.rollout.generate_timeout_s=40", "actor_rollout_ref.rollout.start_timeout_s=120")
    run = Watched(directory, *arguments(directory, *OFF, *LONG, *longer, *limits))
    run.wait_for_step(1, timeout_s=600)
    os.kill(run.pids("rollout-0")[-1], signal.SIGSTOP)
    begin = time.monotonic()
    done = run.finish()
    assert done.code == 1
    waits = "generating responses: no answer within 40 s", "loading weights into engines: no answer within 120 s"
    assert any(f"{wait} from rollout." in message(done)[0] for wait in waits)
    assert "of rank 0" in message(done)[0]
    assert time.monotonic() - begin < 260


@pytest.mark.long
def test_a_training_rank_killed_while_engines_generate_ahead_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "rank"
    run = Watched(directory, *arguments(directory, *OFF, "trainer.num_cpu_ranks=2"))
    run.wait_for_checkpoint(2)
    pid = run.kill("train-1")
    done = run.finish()
    assert done.code == 1
    assert f"train rank 1 (process {pid} on node" in message(done)[0]
    assert "was killed by SIGKILL" in message(done)[0]
