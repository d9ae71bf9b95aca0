"""`rlcheck hang RUN_DIR` on real runs that stand still: the role that the others wait for is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.trainer.failures.scene import Watched, arguments

pytestmark = pytest.mark.timeout(900)
NEVER_ANSWERS = """
import pathlib, threading
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    pathlib.Path({asked!r}).touch()
    threading.Event().wait()
"""


def hang(directory: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and verdict of the command on the run in DIRECTORY."""
    words = [sys.executable, "-m", "rlcheck", "hang", str(directory), "--for", "3", "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    return done.returncode, report["hang"] or report


@pytest.mark.long
def test_a_reward_function_that_never_answers(tmp_path: Path) -> None:
    directory, asked = tmp_path / "run", tmp_path / "asked"
    (tmp_path / "reward.py").write_text(NEVER_ANSWERS.format(asked=str(asked)))
    reward = f"custom_reward_function.path={tmp_path / 'reward.py'}"
    run = Watched(directory, *arguments(directory, reward, "reward_model.rules=[]"))
    try:
        run.wait_until(asked.exists, "the first call of the reward function")
        code, verdict = hang(directory)
    finally:
        run.terminate()
        run.finish()
    assert code == 1, verdict
    assert [one["role"] for one in verdict["culprits"]] == ["reward"]
    assert "compute_score" in str(verdict["culprits"][0]["stack"])
    assert any(wait["who"].startswith("controller") for wait in verdict["waits"])


def test_an_engine_that_is_stuck(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run = Watched(directory, *arguments(directory, "trainer.total_training_steps=400", "trainer.capsule_steps=[]"))
    run.wait_for_checkpoint(1)
    engine = run.pids("rollout-0")[-1]
    os.kill(engine, signal.SIGSTOP)
    try:
        code, verdict = hang(directory)
        state = Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[0]
    finally:
        os.kill(engine, signal.SIGCONT)
        run.terminate()
        run.finish()
    assert code == 1, verdict
    assert [(one["role"], one["kind"]) for one in verdict["culprits"]] == [("rollout-0", "stopped")]
    assert state == "T", "it is left as it was"
