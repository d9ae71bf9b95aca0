"""A run that stops moving says who waits for whom, and where every rank stands."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.trainer.failures.scene import Watched, arguments, checkpoints, message

pytestmark = pytest.mark.timeout(900)


@pytest.mark.row("F69")
def test_stall(tmp_path: Path) -> None:
    """One of two ranks is stopped, as by a disk that does not answer: the other waits in a collective for ever."""
    directory = tmp_path / "run"
    # No capsule of the first step: what ranks keep of it after the checkpoint is no collective.
    values = ("trainer.num_cpu_ranks=2", "trainer.stall_timeout_s=10", "trainer.capsule_steps=[]")
    run = Watched(directory, *arguments(directory, *values))
    run.wait_for_checkpoint(1)
    stopped = run.pids("train-1")[-1]
    os.kill(stopped, signal.SIGSTOP)
    done = run.finish()
    assert done.code == 1
    lines = message(done)
    assert "no progress for 1" in lines[0]
    assert "the controller has waited" in lines[0]
    assert "of rank 1" in lines[0].split("the controller has waited")[1]
    assert "; train rank 1 (process " in lines[0]
    assert " is stopped; the stacks of all ranks: " in lines[0]
    assert "trainer.stall_timeout_s=10" in lines[0]
    report = (directory / "logs" / "stall.txt").read_text()
    assert str(directory / "logs" / "stall.txt") in lines[0]
    assert "-- who waits for whom" in report
    assert f"for rank 1 (process {stopped}), which is stopped" in report, "rlcheck hang's verdict"
    for who in ("controller", "train rank 0", f"train rank 1 (process {stopped}", "rollout rank 0"):
        assert f"-- {who}" in report
    ranks = report.split("-- train rank ")
    assert "cluster/host.py" in ranks[1], "rank 0 is in a call, and waits there for rank 1"
    assert "actor_method_executor" in ranks[2] or "main_loop" in ranks[2], "rank 1 is shown although it is stopped"
    assert "global_step_1" in checkpoints(directory)
