"""The doctor inside real Slurm jobs: CPUs that Ray counts and may not use, srun as the launcher, the shipped script."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, Done, write_command
from tests.multinode.debs import find
from tests.multinode.raycluster import STARTED
from tests.multinode.reports import Examined
from tests.slurm.cluster import Slurm

SRUN = str(find("srun"))
RLCHECK = (sys.executable, "-m", "rlcheck")


def report(done: Done) -> Examined:
    """The JSON report in a step's output."""
    assert done.out, done.err
    found = json.loads(done.out)
    return Examined(done.code, done.seconds, {finding["id"]: finding for finding in found["checks"]}, found["exhibits"])


def test_two_machines(cluster: Slurm) -> None:
    done = cluster.run(SRUN, "--nodes=2", "--ntasks=2", "hostname")
    assert (done.code, sorted(done.out.split())) == (0, ["node1", "node2"]), done.err + cluster.logs()


@pytest.mark.row("F52")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
def test_one_cpu_of_the_machine_is_allowed(cluster: Slurm) -> None:
    """Ray counts the machine's CPUs, the step may use one."""
    arguments = ("env", "--select", "SYS015", "--format", "json")
    narrow = report(cluster.run(SRUN, "--ntasks=1", "--cpus-per-task=1", *RLCHECK, *arguments))
    narrow.names("SYS015", "1 usable by the affinity mask", f"Ray counts {os.cpu_count()}", status="warn")
    wide = report(cluster.run(SRUN, "--ntasks=1", f"--cpus-per-task={os.cpu_count()}", *RLCHECK, *arguments))
    assert wide.findings["SYS015"]["status"] == "pass"


@pytest.mark.row("F52")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
def test_ray_registers_more_cpus_than_the_step_has(cluster: Slurm, tmp_path: Path) -> None:
    """`ray start` in a step with one CPU: the doctor, as a second step of that job, says what Ray should be told."""
    pytest.importorskip("ray")
    node = cluster.nodes[0]
    script = f"""
{sys.executable} -m ray.scripts.scripts start --head --node-ip-address={node.address} --port=6400 --block \
  --object-store-memory=80000000 --include-dashboard=false --disable-usage-stats >{tmp_path}/ray.log 2>&1 &
for i in $(seq 300); do grep -q "{STARTED}" {tmp_path}/ray.log && break; sleep 0.1; done
{" ".join(RLCHECK)} ray --head-ip {node.address}:6400 --format json
kill %1; wait
"""
    step = (SRUN, "--ntasks=1", "--cpus-per-task=1", "--nodelist=node1", "bash", "-mc", script)
    examined = report(cluster.run(*step, env={"RAY_AUTH_MODE": "disabled"}, timeout=90))
    examined.names("RAY053", "node1", str(os.cpu_count()), "1", status="warn")


def test_hosts_of_the_job(cluster: Slurm) -> None:
    """`--hosts slurm` asks every node of the job through srun."""
    arguments = ("ray", "--hosts", "slurm", "--python", sys.executable, "--format", "json")
    salloc = (str(find("salloc")), "--quiet", "--nodes=2", "--ntasks-per-node=1")
    examined = report(cluster.run(*salloc, *RLCHECK, *arguments))
    assert examined.failed() == set()
    for id in ("RAY045", "RAY047", "RAY062", "RAY063"):
        assert examined.findings[id]["status"] == "pass", examined.findings[id]


def test_collectives_under_srun(cluster: Slurm) -> None:
    """Each task is a rank; the first one reports."""
    step = (SRUN, "--nodes=2", "--ntasks=2", *RLCHECK, "nccl", "--quick", "--format", "json")
    examined = report(cluster.run(*step, timeout=120))
    assert examined.failed() == set(), examined.problems()
    assert "srun" in str(examined.exhibits) or "node2" in str(examined.exhibits)


@pytest.mark.row("F67")
@pytest.mark.timeout(400)
@pytest.mark.long
def test_the_shipped_script_trains(cluster: Slurm, tmp_path: Path) -> None:
    """docs/trainer/slurm.sh with sbatch: Ray on both nodes, `rltrain run` over it, and nothing left of the job."""
    code = "from rltrain.cli.app import main; main()"
    write_command(tmp_path / "bin", "rltrain", f'exec {sys.executable} -c "{code}" "$@"')
    for node in cluster.nodes:
        node.environ["PATH"] = f"{tmp_path / 'bin'}:{node.full_environ()['PATH']}"
    log = tmp_path / "job.txt"
    run = ("toy-ppo", "trainer.total_training_steps=2", f"trainer.default_local_dir={tmp_path / 'run'}")
    options = ("--parsable", "--nodes=2", f"--output={log}")
    job = cluster.run(str(find("sbatch")), *options, ROOT / "docs" / "trainer" / "slurm.sh", *run)
    assert job.code == 0, job.err
    assert _wait_ended(cluster, job.out.strip()) == "COMPLETED", log.read_text()
    assert "finished 2 steps" in log.read_text()
    assert not [pid for node in cluster.nodes for pid in node.pids("ray")]


def _wait_ended(cluster: Slurm, job: str) -> str:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        done = cluster.run(str(find("scontrol")), "show", "job", "--oneliner", job)
        state = next(word.partition("=")[2] for word in done.out.split() if word.startswith("JobState="))
        if state not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
            return state
        time.sleep(0.5)
    return "TIMEOUT"
