"""Ranks that torchrun or srun have started find each other, measure together and end together."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlcheck.measure.collectives.launched import place_of, ports_of
from tests.conftest import ROOT, base_environ

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}  # fmt: skip
SRUN = {"SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1", "SLURM_JOB_ID": "77"}  # fmt: skip


def test_the_place_in_a_run_is_read_from_what_the_launcher_says() -> None:
    place = place_of(TORCHRUN)
    assert place is not None
    assert (place.launcher, place.rank, place.size, place.local_rank, place.leader) == ("torchrun", 1, 4, 1, "10.0.0.1")
    assert not place.one_machine
    slurm = place_of(SRUN)
    assert slurm is not None
    assert (slurm.launcher, slurm.rank, slurm.size, slurm.local_rank, slurm.run) == ("srun", 2, 3, 1, "77.0")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"},
        {**TORCHRUN, "WORLD_SIZE": "many"},
        {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"},
        {name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"},  # the script of sbatch
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    ],
)
def test_nobody_else_is_gathered(environ: dict[str, str]) -> None:
    assert place_of(environ) is None


def test_ports_follow_from_the_run_and_stay_below_those_that_kernels_hand_out() -> None:
    assert ports_of("a") == ports_of("a")
    assert ports_of("a") != ports_of("b")
    assert all(20000 <= port < 32768 for port in ports_of("a"))
    assert len(ports_of("a")) >= 6


def rank(number: int, size: int = 2, **more: str) -> subprocess.Popen[str]:
    environ = {**TORCHRUN, "RANK": str(number), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    environ |= {"LOCAL_RANK": str(number), "MASTER_ADDR": "127.0.0.1", **more}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.measure.collectives.gathered"],
        cwd=ROOT,
        env=base_environ(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_torchrun_starts_three_ranks_and_one_reports() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", "29617"]
    done = subprocess.run(
        [*command, "-m", "tests.measure.collectives.gathered"],
        cwd=ROOT,
        env=base_environ({"OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    told = json.loads(line)
    assert told["launcher"] == "torchrun"
    assert told["lost"] == {}
    ((phase, num_ranks, error, num_samples),) = told["groups"]
    assert (phase, num_ranks, error) == ("node", 3, "")
    assert num_samples >= 6
    assert not [pid for pid in told["pids"] if Path(f"/proc/{pid}").exists()]


def test_the_others_end_with_the_code_of_rank_0_although_a_port_is_taken() -> None:
    port = "29618"
    first = ports_of(f"none:127.0.0.1:{port}")[0]
    with socket.create_server(("127.0.0.1", first)):
        leader, follower = rank(0, MASTER_PORT=port, CODE="1"), rank(1, MASTER_PORT=port)
        out, error = leader.communicate(timeout=60)
        assert leader.returncode == 0, error
        assert json.loads(out)["groups"]
        assert follower.communicate(timeout=10) == ("", "")
        assert follower.returncode == 1


def test_the_others_end_when_rank_0_dies() -> None:
    leader, follower = rank(0, MASTER_PORT="29619", DIE="1"), rank(1, MASTER_PORT="29619")
    leader.communicate(timeout=60)
    started = time.monotonic()
    assert follower.communicate(timeout=40) == ("", "")
    assert follower.returncode == 3
    assert time.monotonic() - started < 20


def test_ports_that_are_all_taken_are_said_in_one_line() -> None:
    port = "29620"
    taken = [socket.create_server(("127.0.0.1", number)) for number in ports_of(f"none:127.0.0.1:{port}")]
    try:
        _, error = rank(0, MASTER_PORT=port).communicate(timeout=30)
    finally:
        for listener in taken:
            listener.close()
    assert len(error.splitlines()) == 1
    assert "taken" in error
    assert "--master-port" in error
