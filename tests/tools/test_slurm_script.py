"""docs/trainer/slurm.sh with stand-ins for Slurm, Ray and rltrain: who is started where, and how the job ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import write_command
from tests.tools.pages import ROOT

SCRIPT = ROOT / "docs" / "trainer" / "slurm.sh"
# Each writes what it was asked; a Ray node joins when it is started, and stays until it is ended.
COMMANDS = {
    "scontrol": 'echo "scontrol $*" >>"$LOG"; echo first; echo second; echo third',
    "getent": 'echo "getent $*" >>"$LOG"; echo "10.0.0.1 STREAM first"; echo "10.0.0.1 DGRAM"',
    "srun": 'echo "srun $*" >>"$LOG"\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"',
    "ray": """if [ "$1" = status ]; then
  joined=$(cat "$NODES_FILE" 2>/dev/null | wc -l)
  [ "$joined" -gt 0 ] || exit 1
  i=0; while [ $i -lt $joined ]; do echo " 1 node_$i"; i=$((i + 1)); done
  exit
fi
test -n "$RAY_AUTH_TOKEN" || exit 9
case "$*" in *--head*) echo x >>"$NODES_FILE" ;; *) echo x >>"$NODES_FILE"; echo x >>"$NODES_FILE" ;; esac
echo $$ >>"$PIDS"
exec sleep 60""",
    "rltrain": """echo "rltrain $* at $RAY_ADDRESS with $(cat "$NODES_FILE" | wc -l) nodes" >>"$LOG"
trap 'echo "rltrain: SIGTERM" >>"$LOG"; exit 130' TERM
i=0; while [ $i -lt "${STEPS:-0}" ]; do sleep 0.1; i=$((i + 1)); done
exit "${RLTRAIN_CODE:-0}\"""",
}


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on three nodes."""
    for name, script in COMMANDS.items():
        write_command(tmp_path / "bin", name, script)
    return {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "LOG": str(tmp_path / "log"),
        "NODES_FILE": str(tmp_path / "nodes"),
        "PIDS": str(tmp_path / "pids"),
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_JOB_NODELIST": "[first-third]",
    }


def start(job: dict[str, str], **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", SCRIPT, "my.yaml", "trainer.seed=7"],
        env={**job, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(job: dict[str, str], process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Exit code, and what was called; no Ray may be left."""
    code = process.wait(60)
    pids = [int(pid) for pid in Path(job["PIDS"]).read_text().split()]
    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if _runs(pid)]
    return code, Path(job["LOG"]).read_text().splitlines()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.row("F59", "F67")
@pytest.mark.parametrize("code", [0, 1])
def test_ray_on_every_node_then_rltrain(job: dict[str, str], code: int) -> None:
    ended, log = finish(job, start(job, RLTRAIN_CODE=str(code)))
    assert ended == code
    name, head, workers = (line for line in log if line.startswith("srun"))
    assert "--nodes=1 --ntasks=1 --exclude=first" in name  # its own name may mean 127.0.1.1 to the first node itself
    assert "--nodelist=first" in head
    assert "ray start --head --node-ip-address=10.0.0.1 --port=6379" in head
    assert "--nodes=2 --ntasks=2 --exclude=first" in workers
    assert "ray start --address=10.0.0.1:6379" in workers
    assert log[-1] == "rltrain run my.yaml trainer.seed=7 trainer.nnodes=3 at 10.0.0.1:6379 with 3 nodes"


def test_the_time_limit_reaches_rltrain(job: dict[str, str]) -> None:
    process = start(job, STEPS="300")
    deadline = time.monotonic() + 20
    while "rltrain run" not in (Path(job["LOG"]).read_text() if Path(job["LOG"]).exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    code, log = finish(job, process)
    assert (code, log[-1]) == (130, "rltrain: SIGTERM")


def test_one_node_needs_no_workers(job: dict[str, str]) -> None:
    code, log = finish(job, start(job, SLURM_JOB_NUM_NODES="1"))
    assert code == 0
    assert len([line for line in log if line.startswith("srun")]) == 1
