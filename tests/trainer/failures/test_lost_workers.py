"""`kill -9` of the engine, of a training rank, of the controller: on real Ray, with real FSDP2 ranks and engines."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.trainer.end_to_end.runs import Run, anew, column
from tests.trainer.failures.scene import Watched, arguments, checkpoints, message

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lost")


@pytest.fixture(scope="module")
def lost_once(place: Path) -> Run:
    """The vLLM engine is killed after the first of three steps."""
    directory = anew(place / "once")
    values = (
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.max_num_seqs=16",
        "trainer.total_training_steps=3",
        "trainer.verify_weight_sync=true",
    )
    run = Watched(directory, *arguments(directory, *values))
    run.wait_for_checkpoint(1)
    run.kill("rollout-0")
    return run.finish()


def test_a_lost_engine_is_started_anew_and_the_run_goes_on(lost_once: Run) -> None:
    assert lost_once.code == 0, lost_once.err
    assert lost_once.out.count("restarting rollout-0") == 1
    assert "rollout rank 0" in lost_once.out
    assert [step["step"] for step in lost_once.steps] == [0, 1, 2, 3]
    assert lost_once.record["outcome"] == "finished"


def test_training_leaves_the_device_while_it_starts(lost_once: Run) -> None:
    """The order on the real stack; on a CPU leaving costs nothing, and moves nothing."""
    said = re.search(
        r"restarting rollout-0.*models are on the host \(([\d.]+) MiB\).*models are back", lost_once.out, re.DOTALL
    )
    assert said is not None, lost_once.out
    assert float(said[1]) > 0


def test_it_is_given_the_weights_of_the_actor(lost_once: Run) -> None:
    """Checksums were compared at each sync; an engine with other weights would differ by 1e-3 and more."""
    diffs = column(lost_once.steps, "training/rollout_probs_diff_mean")
    assert len(diffs) == 3
    assert max(diffs) < 5e-6


@pytest.mark.long
def test_a_second_loss_ends_the_run(tmp_path: Path) -> None:
    """Of two engines first the one is lost, then the other; between them the run goes on with both."""
    directory = tmp_path / "twice"
    run = Watched(directory, *arguments(directory, "actor_rollout_ref.rollout.num_replicas=2"))
    run.wait_for_checkpoint(1)
    first = run.kill("rollout-0")
    run.wait_for_checkpoint(2)
    second = run.kill("rollout-1")
    assert second != first
    done = run.finish()
    assert done.code == 1
    assert done.record["outcome"] == "failed"
    assert done.out.count("restarting rollout-0") == 1
    # Answers that were given to the wrong prompts would differ by 1e-3 and more.
    diffs = column(done.steps, "training/rollout_probs_diff_mean")
    assert len(diffs) >= 2
    assert max(diffs) < 5e-6
    lines = message(done)
    assert f"process {second} on node" in lines[0]
    assert "was killed by SIGKILL" in lines[0]
    assert "an engine had been restarted before: once in a run is the limit" in lines[0]
    assert "Saved up to step " in lines[-1]


def test_a_lost_training_rank_ends_the_run(tmp_path: Path) -> None:
    directory = tmp_path / "rank"
    run = Watched(directory, *arguments(directory, "trainer.num_cpu_ranks=2"))
    run.wait_for_checkpoint(1)
    pid = run.kill("train-1")
    done = run.finish()
    assert done.code == 1
    lines = message(done)
    assert f"train rank 1 (process {pid} on node" in lines[0]
    assert "was killed by SIGKILL" in lines[0]
    assert str(directory / "logs" / "train-1.log") in lines[0]
    assert "Saved up to step " in lines[-1]
    assert "global_step_1" in checkpoints(directory)


def test_everything_goes_with_a_killed_controller(tmp_path: Path) -> None:
    """Nobody is left to clean up but the guards; `finish` fails on what is still there after some seconds."""
    directory = tmp_path / "controller"
    run = Watched(directory, *arguments(directory))
    run.wait_for_checkpoint(1)
    os.kill(run.pid, signal.SIGKILL)
    assert run.finish().code == -signal.SIGKILL
    assert set(checkpoints(directory)) <= {"global_step_1", ".global_step_2.partial", "global_step_2"}
