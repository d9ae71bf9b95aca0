"""Bounded staleness when something dies, hangs or fills up: who it was is said, and nothing that was saved is lost."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.end_to_end.runs import Run, rltrain
from tests.trainer.end_to_end.test_bounded import BOUND, BOUNDED, GROUPS, LONG, STEPS, held
from tests.trainer.failures.scene import Watched, arguments, message

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

SAVED_EACH_STEP = ("trainer.save_freq=1",)
SLOW_SYNC = """
import contextlib, pathlib, sys, time
import rltrain.controller.engine_group as engines
from rltrain.cli.app import main

flag = pathlib.Path(sys.argv.pop(1))
plain = engines.EngineGroup._interrupted

@contextlib.contextmanager
def slowly(self):
    with plain(self):
        if self._generation.under_way and self.policy_version == 1 and not flag.exists():
            flag.touch()
            time.sleep(3)
        yield

engines.EngineGroup._interrupted = slowly
sys.argv[0] = "rltrain"
main()
"""
"""rltrain, whose second weight sync waits for three seconds between interrupting the engines and sending weights."""
NEVER_ANSWERS = """
import pathlib, threading
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if pathlib.Path({metrics!r}).exists() and pathlib.Path({metrics!r}).read_text().count("\\n") > 2:
        threading.Event().wait()
    return 1.0
"""


def resumed(directory: Path) -> Run:
    """The run in DIRECTORY gone on with, to its end."""
    return rltrain(directory, *arguments(directory, *BOUNDED, *LONG, *SAVED_EACH_STEP)).succeeded()


def lost_nothing(directory: Path, saved: int) -> None:
    """The run in DIRECTORY goes on from step SAVED at least, to its end, and no answer is too old."""
    done = resumed(directory)
    (first,) = [line for line in done.out.splitlines() if f"of {STEPS})" in line and "(step " in line]
    assert int(first.partition("(step ")[2].split()[0]) >= saved
    held(done)


def test_an_engine_killed_in_a_sync(tmp_path: Path) -> None:
    """Its answers were taken out for the new weights; they begin again in the engine that is started anew."""
    directory, program, flag = tmp_path / "sync", tmp_path / "program.py", tmp_path / "flag"
    program.write_text(SLOW_SYNC)
    values = arguments(directory, *BOUNDED, *LONG)
    run = Watched(directory, *values, program=(sys.executable, str(program), str(flag)))
    run.wait_until(flag.exists, "the second sync")
    run.kill("rollout-0")
    done = run.finish().succeeded()
    held(done)
    assert done.out.count("restarting rollout-0") == 1


def test_an_engine_that_hangs_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "hung"
    limits = ("actor_rollout_ref.rollout.generate_timeout_s=30", "actor_rollout_ref.rollout.start_timeout_s=60")
    run = Watched(directory, *arguments(directory, *BOUNDED, *LONG, *SAVED_EACH_STEP, *limits))
    run.wait_for_checkpoint(2)
    os.kill(run.pids("rollout-0")[-1], signal.SIGSTOP)
    begin = time.monotonic()
    done = run.finish()
    assert done.code == 1
    assert "rollout." in message(done)[0]
    assert "of rank 0" in message(done)[0]
    assert time.monotonic() - begin < 150
    lost_nothing(directory, 2)


def test_a_reward_that_never_answers_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "reward"
    (tmp_path / "reward.py").write_text(NEVER_ANSWERS.format(metrics=str(directory / "metrics.jsonl")))
    reward = (
        f"custom_reward_function.path={tmp_path / 'reward.py'}",
        "reward_model.rules=[]",
        "reward_model.timeout_s=5",
    )
    done = Watched(directory, *arguments(directory, *BOUNDED, *LONG, *SAVED_EACH_STEP, *reward)).finish()
    assert done.code == 1
    assert "reward" in message(done)[0]
    assert "Saved up to step 2" in message(done)[-1]


def test_a_full_buffer_holds_no_more_than_the_bound_lets_in(tmp_path: Path) -> None:
    """Training is the slow side: engines stop when the bound is reached, and nothing is dropped."""
    directory = tmp_path / "full"
    short = ("data.max_response_length=5", "trainer.save_freq=1")
    done = rltrain(directory, *arguments(directory, *BOUNDED, *LONG, *short)).succeeded()
    held(done)
    trained = [record for record in done.steps if record["step"]]
    levels = [record["rollout/buffer_finished"] + record["rollout/buffer_unfinished"] for record in trained]
    assert max(levels) == BOUND * GROUPS, "what a step has taken is not counted"


def test_a_training_rank_killed_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "rank"
    run = Watched(directory, *arguments(directory, *BOUNDED, *LONG, *SAVED_EACH_STEP, "trainer.num_cpu_ranks=2"))
    run.wait_for_checkpoint(2)
    pid = run.kill("train-1")
    done = run.finish()
    assert done.code == 1
    assert f"train rank 1 (process {pid} on node" in message(done)[0]
    assert "was killed by SIGKILL" in message(done)[0]
    lost_nothing(directory, 2)


def test_everything_goes_with_a_killed_controller(tmp_path: Path) -> None:
    directory = tmp_path / "controller"
    run = Watched(directory, *arguments(directory, *BOUNDED, *LONG, *SAVED_EACH_STEP))
    run.wait_for_checkpoint(2)
    os.kill(run.pid, signal.SIGKILL)
    assert run.finish().code == -signal.SIGKILL
    lost_nothing(directory, 2)
