"""A disk that is full when a checkpoint is due: a small tmpfs of its own, seen by the run alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.trainer.failures.scene import Watched, arguments, checkpoints, message

pytestmark = pytest.mark.timeout(900)
SCRIPT = """
mount -t tmpfs -o size={kib}k tmpfs "$1/checkpoints" || exit 77
directory=$1; shift
"$@"
code=$?
cp -a "$directory/checkpoints" "$directory/left"
exit $code
"""


def test_disk_full(tmp_path: Path) -> None:
    """The first checkpoint fits, the second does not; the first stays whole, and of the second nothing stays."""
    directory = tmp_path / "run"
    (directory / "checkpoints").mkdir(parents=True)
    isolated = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")
    shell = ("sh", "-c", SCRIPT.format(kib=3400), "sh", str(directory))
    program = (*isolated, *shell, sys.executable, "-m", "rltrain")
    run = Watched(directory, *arguments(directory), program=program).finish()
    assert run.code == 1
    lines = message(run)
    assert "checkpoint of step 2 could not be written" in lines[0]
    assert "No space left on device" in lines[0]
    assert "earlier checkpoints are whole" in lines[0]
    assert "Saved up to step 1: go on with" in lines[-1]
    left = directory / "left"
    left.rename(directory / "checkpoints.left")
    assert os.listdir(directory / "checkpoints.left") == ["global_step_1"]
    from rltrain.records.checkpoints import at

    at(directory / "checkpoints.left" / "global_step_1").verify()
    assert checkpoints(directory) == []
