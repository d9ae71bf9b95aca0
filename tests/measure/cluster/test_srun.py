"""What srun is asked to do and what is made of its words; tests/slurm runs the real one."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from rlcheck.measure.cluster.launch import open_srun
from rlcheck.measure.cluster.srun import explain
from rlcheck.measure.cluster.switchboard import Seat
from tests.conftest import ROOT, write_command

SRUN = """
echo "$*" > {log}.$$
while [ "${{1#--}}" != "$1" ]; do shift; done
export SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
exec "$@"
"""


def test_a_step_for_each_node(tmp_path: Path) -> None:
    srun = write_command(tmp_path, "srun", SRUN.format(log=tmp_path / "asked"))
    with open_srun(("gpu1", "gpu2"), sys.executable, (str(srun), "--quiet")) as board:
        board.wait_up()
        assert not board.lost
        assert [seat.name for seat in board.seats] == ["gpu1", "gpu2"]
        assert {seat.address for seat in board.seats} == {"127.0.0.1"}
    asked = sorted(path.read_text().split(f" {sys.executable}")[0] for path in tmp_path.glob("asked.*"))
    assert asked == [f"--quiet --nodes=1 --ntasks=1 --nodelist=gpu{number} --overlap --unbuffered" for number in (1, 2)]


def test_srun_that_is_not_there_and_srun_that_refuses(tmp_path: Path) -> None:
    with open_srun(("gpu1",), srun=("no-such-srun",)) as board:
        assert board.lost == {0: "no-such-srun: No such file or directory"}
    said = "srun: error: Unable to create step for job 7: Invalid node name specified"
    srun = write_command(tmp_path, "srun", f"echo '{said}' >&2; echo 'srun: hint' >&2; exit 1")
    with open_srun(("gpu1",), srun=(str(srun),)) as board:
        board.wait_up()
        assert board.lost == {0: f"its step ended: {said}"}


def test_srun_that_says_nothing() -> None:
    assert explain(Seat("a"), 3, ()) == "its step ended: exit status 3"
    assert explain(Seat("a"), -15, ()) == "its step ended: signal 15"


REMOTE = [*(ROOT / "rlcheck" / "remote" / "agent").glob("*.py"), ROOT / "rlcheck" / "remote" / "ray_mux.py"]


@pytest.mark.parametrize("path", REMOTE, ids=lambda path: path.name)
def test_what_is_sent_can_be_read_by_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
